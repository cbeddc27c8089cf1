import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { SessionStatus, StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { eventually } from "../kit/eventually.ts";
import {
  type FakeMessagesApi,
  gate,
  startFakeMessagesApi,
  type Turn,
  text,
  thinking,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { copyIn } from "../kit/hand-copies.ts";
import type { Platform } from "../kit/platform.ts";

let api: FakeMessagesApi;
let platform: Platform;
let earlierRequests = 0;

const TIMEOUT_MS = 300_000;

beforeAll(async () => {
  api = await startFakeMessagesApi({ script: [] });
  platform = await startDatabasePlatform({
    env: { harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url } },
  });
}, TIMEOUT_MS);
afterAll(async () => {
  await platform?.stop();
  await api?.stop();
});
afterEach(() => expect(api.refusals).toEqual([]));

/** What the running test's requests get. */
function answer(...turns: Turn[]): void {
  api.enqueue(...turns);
  earlierRequests = api.requests.length;
}

/** Of the running test. */
const requests = () => api.requests.slice(earlierRequests);

const message = (words: string) => ({
  type: "user.message",
  payload: JSON.stringify({ content: [{ type: "text", text: words }] }),
});

async function talk(words: string, loopSettings = ""): Promise<string> {
  const tools = [{ kind: { case: "handToolset" as const, value: {} } }];
  const spec = { name: "test", system: "Be brief.", model: { id: "claude-test" }, tools, loopSettings };
  const { agent } = await platform.client(AgentService).createAgent({ spec });
  const { environment } = await platform
    .client(EnvironmentService)
    .createEnvironment({ spec: { name: `of ${agent!.id}`, driver: "process" } });
  const { session } = await platform.client(SessionService).createSession({
    agentId: agent!.id,
    environmentId: environment!.id,
    initialEvents: [message(words)],
  });
  return session!.id;
}

async function log(sessionId: string): Promise<Event[]> {
  return (await platform.client(SessionService).getEvents({ sessionId, limit: 1000 })).events;
}

/** The hand may be there before the model has ended the call. */
async function callRuns(sessionId: string): Promise<void> {
  await eventually(
    async () => {
      const seen = types(await log(sessionId));
      return seen.includes("hand.provisioned") && seen.includes("agent.tool_use");
    },
    { withinMs: 60_000 },
  );
}

const types = (events: readonly Event[]) => events.map(({ type }) => type);
const idles = (events: readonly Event[]) =>
  types(events).filter((type) => type === "session.status_idle").length;

async function idle(sessionId: string, times = 1, withinMs = 60_000): Promise<Event[]> {
  return eventually(
    async () => {
      const events = await log(sessionId);
      if (idles(events) >= times) return events;
      throw new Error(`the log has ${types(events)}\n${platform.logs().slice(-4_000)}`);
    },
    { withinMs, everyMs: 100 },
  );
}

describe("a harness at a real server, with a real hand", () => {
  it(
    "runs a session: parallel calls, a second turn, status, usage and consumption as the server folds them",
    async () => {
      answer(
        turn([
          thinking("Both."),
          toolUse("bash", { command: "echo one-$((1+1))" }),
          toolUse("bash", { command: "echo two-$((2+2))" }),
        ]),
        turn(["Done."]),
        turn(["Again."]),
      );
      const sessionId = await talk("go");
      const events = await idle(sessionId);
      expect(requests()[1]!.body.toString()).toMatch(/one-2.*two-4/);
      const { session } = await platform.client(SessionService).getSession({ sessionId });
      expect(session).toMatchObject({ status: SessionStatus.IDLE, stopReason: StopReason.END_TURN });
      expect(session!.usage!.modelRequests).toBe(2n);
      expect(session!.usage!.outputTokens).toBeGreaterThan(0n);
      expect(events.find(({ type }) => type === "user.message")!.processedAt).toBeDefined();
      await platform.client(SessionService).emitEvents({ sessionId, events: [message("more")] });
      await idle(sessionId, 2);
      const [first, second, third] = requests().map(({ body }) =>
        body.toString().replaceAll(`,"cache_control":{"type":"ephemeral"}`, ""),
      );
      expect(second!.startsWith(first!.replace(/\]\}\]\}$/, ""))).toBe(true);
      expect(third!.startsWith(second!.replace(/\]\}\]\}$/, ""))).toBe(true);
    },
    TIMEOUT_MS,
  );

  it(
    "is replaced when it is killed while a call runs: the call goes on and runs once (R3, X2)",
    async () => {
      const command = "echo run >> marks; until [ -e go ]; do sleep 0.1; done; wc -l < marks";
      answer(turn([toolUse("bash", { command })]), turn(["ok"]));
      const sessionId = await talk("go");
      await callRuns(sessionId);
      await platform.program("harness").end("SIGKILL");
      await platform.start("harness");
      const hands = platform.client(HandService);
      const [hand] = (await hands.listHands({ sessionId })).hands;
      await copyIn(hands, { handId: hand!.id, path: "go", reason: "it may end" }, Buffer.alloc(0));
      const events = await idle(sessionId);
      const results = events.filter(({ type }) => type === "agent.tool_result");
      expect(results).toHaveLength(1);
      expect(JSON.parse(results[0]!.payload)).toMatchObject({ content: [{ type: "text", text: "1" }] });
      expect(requests()).toHaveLength(2);
    },
    TIMEOUT_MS,
  );

  it(
    "interrupts a running call, which gets its one result, and goes on with the next message (X3)",
    async () => {
      answer(turn([toolUse("bash", { command: "sleep 600" })]), turn(["instead"]));
      const sessionId = await talk("go");
      await callRuns(sessionId);
      const interrupt = { type: "user.interrupt", payload: "{}" };
      await platform
        .client(SessionService)
        .emitEvents({ sessionId, events: [interrupt, message("do this")] });
      const events = await idle(sessionId, 2);
      expect(types(events).filter((type) => type === "agent.tool_result")).toHaveLength(1);
      expect(
        events.filter(({ type }) => type.startsWith("user.")).every(({ processedAt }) => processedAt),
      ).toBe(true);
      expect(types(events).filter((type) => type === "agent.message")).toHaveLength(1);
    },
    TIMEOUT_MS,
  );

  it(
    "keeps an answer that is larger than a message, byte for byte, and a tool input beyond it is an error result (E4)",
    async () => {
      const long = "Grün \u2028 ".repeat(300_000);
      const input = { path: "big.txt", content: "x".repeat(4 * 1024 * 1024) };
      answer(turn([text(long), toolUse("write", input)]), turn(["Done."]));
      // What is asked for here is longer than a model's window.
      const sessionId = await talk("go", `{"context":{"compact":false}}`);
      const events = await idle(sessionId, 1, 60_000);
      expect(types(events)).not.toContain("session.error");
      const said = events.find(({ type }) => type === "agent.message")!;
      const bytes: Uint8Array[] = [];
      const reading = platform.client(SessionService).readPayload({ sessionId, eventId: said.id });
      for await (const { chunk } of reading) bytes.push(chunk);
      expect(JSON.parse(Buffer.concat(bytes).toString())).toEqual({
        content: [{ type: "text", text: long }],
      });
      const result = events.find(({ type }) => type === "agent.tool_result")!;
      expect(JSON.parse(result.payload)).toMatchObject({ is_error: true });
      expect(JSON.parse(requests()[1]!.body.toString()).messages[1].content[0].text).toBe(long);
    },
    TIMEOUT_MS,
  );

  it(
    "keeps its lease and its model request while the server restarts (E2)",
    async () => {
      const held = gate();
      answer(turn([text("slow ", "answer")], { before: { end: held.opened } }));
      const sessionId = await talk("go");
      await api.received(earlierRequests + 1, 30_000);
      await platform.program("server").end("SIGTERM");
      await platform.start("server");
      held.open();
      const events = await idle(sessionId);
      expect(requests()).toHaveLength(1);
      expect(types(events).filter((type) => type === "span.model_request_start")).toHaveLength(1);
    },
    TIMEOUT_MS,
  );
});
