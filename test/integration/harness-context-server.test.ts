/** A long talk on the whole platform: its harness is killed while it waits for a summary, and what was left out can be read again. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { eventually } from "../kit/eventually.ts";
import {
  type FakeMessagesApi,
  gate,
  type MessagesRequest,
  startFakeMessagesApi,
  type Turn,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { isSummaryRequest } from "../kit/long-session.ts";
import type { Platform } from "../kit/platform.ts";

const WINDOW_TOKENS = 6_000;
const STEPS = 12;

let api: FakeMessagesApi;
let platform: Platform;
let summaries = 0;
const asked = gate();

/** Each step prints a word that stands nowhere else, and a lot besides. */
function answer(request: MessagesRequest): Turn {
  const said = JSON.stringify(request.messages);
  const step = Math.max(0, ...[...said.matchAll(/step (\d+)/g)].map(([, n]) => Number(n)));
  if (isSummaryRequest(request)) {
    const notes = turn([`<summary>All is done up to step ${step}.</summary>`]);
    summaries += 1;
    if (summaries > 1) return notes;
    asked.open();
    return { ...notes, before: { end: new Promise(() => {}) } };
  }
  const last = JSON.stringify(request.messages.at(-1));
  if (last.includes("agent.tool_result")) return turn(["I have seen it."]);
  if (said.includes("what was it?")) return turn([toolUse("session_history", { text: "word-of-step-1 " })]);
  if (step >= STEPS) return turn(["All steps are done."]);
  const command = `echo word-of-step-$((${step}+1)) " of step ${step + 1}"; seq 1 400`;
  return turn([toolUse("bash", { command })]);
}

beforeAll(async () => {
  api = await startFakeMessagesApi({ maxInputTokens: WINDOW_TOKENS, script: answer });
  platform = await startDatabasePlatform({
    env: { harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url } },
  });
});

afterAll(async () => {
  await platform.stop();
  await api.stop();
});

const message = (words: string) => ({
  type: "user.message",
  payload: JSON.stringify({ content: [{ type: "text", text: words }] }),
});

async function startSession(): Promise<string> {
  const loopSettings = JSON.stringify({ context: { window_tokens: WINDOW_TOKENS, trim_results: false } });
  const { agent } = await platform.client(AgentService).createAgent({
    spec: {
      name: "long",
      model: { id: "claude-test" },
      tools: [
        { kind: { case: "handToolset", value: {} } },
        { kind: { case: "brainToolset", value: { names: ["session_history"] } } },
      ],
      loopSettings,
    },
  });
  const { environment } = await platform
    .client(EnvironmentService)
    .createEnvironment({ spec: { name: "here", driver: "process" } });
  const { session } = await platform.client(SessionService).createSession({
    agentId: agent?.id ?? "",
    environmentId: environment?.id ?? "",
    initialEvents: [message("take twelve steps")],
  });
  return session?.id ?? "";
}

async function idle(sessionId: string, times: number): Promise<Event[]> {
  return eventually(
    async () => {
      const { events } = await platform.client(SessionService).getEvents({ sessionId, limit: 1000 });
      const idles = events.filter(({ type }) => type === "session.status_idle").length;
      return idles >= times ? events : undefined;
    },
    { withinMs: 60_000, everyMs: 100 },
  );
}

describe("a talk that outgrows its window on the whole platform", () => {
  it("goes on when its harness is killed between a summary's request and its record: it is asked again, and recorded once", async () => {
    const sessionId = await startSession();
    await asked.opened;
    await platform.program("harness").end("SIGKILL");
    await platform.start("harness");
    const events = await idle(sessionId, 1);
    const changes = events.filter(({ type }) => type === "brain.context_changed");
    expect(changes.length).toBe(summaries - 1);
    const [first] = changes;
    expect(JSON.parse(first!.payload)).toMatchObject({ change: "compacted", made_by: "model" });
    // Clients are given no summary.
    expect(events.every(({ internal }) => internal === "")).toBe(true);
    expect(events.some(({ payload }) => payload.includes("All is done up to"))).toBe(false);
    // The same question, byte for byte.
    const questions = api.requests
      .map(({ body }) => body.toString())
      .filter((body) => body.includes("Write notes"));
    expect(questions[1]).toBe(questions[0]);
    expect(api.refusals).toEqual([]);
    // Each step ran once.
    const uses = events.filter(({ type }) => type === "agent.tool_use");
    expect(uses).toHaveLength(STEPS);
    // What the summaries cost is the session's.
    const { session } = await platform.client(SessionService).getSession({ sessionId });
    const ends = events.filter(({ type }) => type === "span.model_request_end");
    const output = ends.reduce((sum, { payload }) => sum + JSON.parse(payload).model_usage.output_tokens, 0);
    expect(Number(session?.usage?.outputTokens)).toBe(output);

    // What the summary replaced is read from the log.
    expect(api.requests.at(-1)!.body.toString()).not.toContain("word-of-step-1 ");
    await platform.client(SessionService).emitEvents({ sessionId, events: [message("what was it?")] });
    const after = await idle(sessionId, 2);
    const result = after.findLast(({ type }) => type === "agent.tool_result");
    const [{ text }] = JSON.parse(result!.payload).content;
    expect(text).toMatch(/\[\d+\] agent\.tool_result \d{4}-/);
    expect(text).toContain("word-of-step-1  of step 1");
    expect(text).not.toContain("word-of-step-2 ");
    expect(JSON.parse(after.findLast(({ type }) => type === "agent.message")!.payload).content).toEqual([
      { type: "text", text: "I have seen it." },
    ]);
  });
});
