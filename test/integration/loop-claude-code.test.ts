/** The loop on the Claude Agent SDK: its real program, between a scripted server and the fake Messages API. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, describe, expect, it } from "vitest";
import { createClaudeCodeLoop } from "../../harness/loops/claude-code/claude-code-loop.ts";
import { systemClock } from "../../kit/clock.ts";
import { type AgentSpec, Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { eventually } from "../kit/eventually.ts";
import {
  type FakeMessagesApi,
  type MessagesRequest,
  text,
  thinking,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { type Rig, type RigOptions, rested, spoken, startRig, stopReasons } from "../kit/harness-rig.ts";
import { define, ends, isGraders, verdict, wasGraders, wordsOf } from "../kit/outcome-session.ts";
import { commandsWith } from "../kit/process-list.ts";
import type { ScriptedTool } from "../kit/scripted-harness-server.ts";
import type { ScriptedSession } from "../kit/scripted-session.ts";

const WITHIN_MS = 60_000;
const TIMEOUT_MS = 300_000;
const PATIENT = { modelTimeoutMs: 60_000, retry: { firstMs: 5, maxMs: 20, totalMs: 60_000 } };
const AGENT: Partial<AgentSpec> = { loop: "claude-code", system: "You are careful." };
const CALL = "mcp__tendon__bash";

let rig: Rig;
/** Everything that programs write is below it, and their watchers' command lines name it. */
const place = mkdtempSync(join(tmpdir(), "loop-claude-code-"));
process.env.TMPDIR = place;
afterAll(() => rmSync(place, { recursive: true, force: true }));
afterEach(async () => {
  await rig.stop();
  expect(rig.api.refusals).toEqual([]);
  await eventually(() => commandsWith(place).length === 0 && readdirSync(place).length === 0);
});
/** Of the one program that runs: its watcher is in its process group. */
function environmentOfProgram(): string {
  const stat = readFileSync(`/proc/${commandsWith(place)[0]}/stat`, "latin1");
  const [, , group] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return readFileSync(`/proc/${group}/environ`, "utf8");
}

const bash: ScriptedTool = ({ command }) => ({ text: `ran ${command}`, isError: command === "false" });
const loopOf = (api: FakeMessagesApi) =>
  createClaudeCodeLoop({
    plain: { PATH: process.env.PATH ?? "" },
    model: { apiKey: api.apiKey, authToken: undefined, baseUrl: api.url },
    proxy: { httpsProxy: undefined, noProxy: undefined },
    defaultModel: "claude-test",
    maxProcesses: 4,
    clock: systemClock,
  });
const start = async (
  script: NonNullable<NonNullable<RigOptions["model"]>["script"]>,
  more: RigOptions = {},
) => {
  rig = await startRig({
    server: { tools: { bash } },
    model: { script },
    loops: (api) => [loopOf(api)],
    settings: PATIENT,
    ...more,
  });
};
const settled = (session: ScriptedSession, times = 1) => rested(session, times, WITHIN_MS);
/** What the model was told, without what the SDK adds about where it runs. */
const told = (n: number) =>
  (rig.api.requests[n - 1]!.json as unknown as MessagesRequest).messages
    .filter(({ role }) => role !== ("system" as string))
    .map(
      ({ role, content }) =>
        [role, typeof content === "string" ? [{ type: "text", text: content }] : content] as const,
    );
const texts = (n: number) =>
  told(n).flatMap(([, content]) =>
    content.map((block) => (block as { text?: string }).text ?? (block as { type: string }).type),
  );

describe("the claude-code loop", () => {
  it("runs its model's calls as the session's, side by side, and goes on from the log in its next life", {
    timeout: TIMEOUT_MS,
  }, async () => {
    let released = () => {};
    const both = new Promise<void>((resolve) => {
      released = resolve;
    });
    let running = 0;
    const together: ScriptedTool = async ({ command }) => {
      running += 1;
      if (running === 2) released();
      await both;
      return { text: `ran ${command}` };
    };
    let environment = "";
    const spy = (request: MessagesRequest) => {
      environment = environmentOfProgram();
      expect((request as unknown as { tools: { name: string }[] }).tools.map(({ name }) => name)).toEqual([
        CALL,
      ]);
      return turn([
        thinking("Hm."),
        text("I ", "look."),
        toolUse(CALL, { command: "a" }),
        toolUse(CALL, { command: "b" }),
      ]);
    };
    await start([spy, turn([text("Both ran.")]), turn([text("Again.")])], {
      server: { tools: { bash: together } },
    });
    const session = rig.talk("go", AGENT);
    await settled(session);
    expect(session.types()).toEqual([
      "user.message",
      "session.status_running",
      "brain.inputs_consumed",
      "span.model_request_start",
      "agent.thinking",
      "agent.message",
      "agent.tool_use",
      "agent.tool_use",
      "span.model_request_end",
      "agent.tool_result",
      "agent.tool_result",
      "span.model_request_start",
      "agent.message",
      "span.model_request_end",
      "session.usage",
      "session.status_idle",
    ]);
    expect(session.payloads("agent.tool_use").map(({ name, input }) => [name, input])).toEqual([
      ["bash", { command: "a" }],
      ["bash", { command: "b" }],
    ]);
    expect(
      session
        .payloads("span.model_request_end")
        .every(({ model_usage }) => (model_usage as { output_tokens: number }).output_tokens > 0),
    ).toBe(true);
    const message = session.events.find(({ type }) => type === "agent.message")!;
    expect(
      rig.server.previews.some(
        ({ preview }) => (preview.kind.value as { eventId?: string }).eventId === message.id,
      ),
    ).toBe(true);
    expect(environment).toContain(`HOME=${place}/`);
    expect(environment.split("\0").filter((line) => line.includes(rig.api.apiKey))).toEqual([
      `ANTHROPIC_API_KEY=${rig.api.apiKey}`,
    ]);
    expect(environment).not.toMatch(/TENDON_|VITEST|NODE_/);

    session.say("more");
    await settled(session, 2);
    expect(texts(3)).toEqual([
      "go",
      "thinking",
      "I look.",
      "tool_use",
      "tool_use",
      "tool_result",
      "tool_result",
      "Both ran.",
      "more",
    ]);
    expect(spoken(session)).toEqual(["I look.", "Both ran.", "Again."]);
    // What clients see says nothing of the transcript, and results are kept once.
    expect(session.events.every(({ payload }) => !payload.includes("parentUuid"))).toBe(true);
    expect(session.events.filter(({ internal }) => internal.includes("ran a"))).toEqual([]);
  });

  it("waits for confirmations without a program, and gives it the results afterwards, denied ones too", {
    timeout: TIMEOUT_MS,
  }, async () => {
    await start([
      turn([
        toolUse(CALL, { command: "yes" }),
        toolUse(CALL, { command: "no" }),
        toolUse("mcp__tendon__nothing", {}),
      ]),
      turn([text("So be it.")]),
    ]);
    const tools = [
      { kind: { case: "handToolset", value: { defaultPolicy: { permission: Permission.ALWAYS_ASK } } } },
    ] as unknown as AgentSpec["tools"];
    const session = rig.talk("go", { ...AGENT, tools });
    await settled(session);
    expect(stopReasons(session)).toEqual(["requires_action"]);
    await eventually(() => commandsWith(place).length === 0);
    const [yes, no] = session.events.filter(({ type }) => type === "agent.tool_use");
    session.send(
      { type: "user.tool_confirmation", payload: { tool_use_id: yes!.id, result: "allow" } },
      {
        type: "user.tool_confirmation",
        payload: { tool_use_id: no!.id, result: "deny", deny_message: "not that" },
      },
    );
    await settled(session, 2);
    expect([...rig.server.runs.values()]).toEqual([1]);
    const results = told(2)
      .flatMap(([, content]) => content)
      .filter((block) => (block as { type: string }).type === "tool_result");
    expect(results).toHaveLength(3);
    expect(JSON.stringify(results)).toMatch(/ran yes.*not that.*There is no tool named/s);
    expect(spoken(session)).toEqual(["So be it."]);
  });

  it("fails as its model does, is asked again, ends when a client interrupts, and forgets nothing that was said", {
    timeout: TIMEOUT_MS,
  }, async () => {
    const overloaded = {
      kind: "http_failure",
      status: 529,
      errorType: "overloaded_error",
      message: "Overloaded",
    } as const;
    await start([overloaded, { kind: "hang" }, turn([text("Here.")])]);
    const session = rig.talk("one", AGENT);
    await rig.api.received(2, WITHIN_MS);
    expect(session.payloads("session.error")).toMatchObject([
      { error: { type: "model_overloaded_error", part: "model", retry_status: { type: "retrying" } } },
    ]);
    session.send({ type: "user.interrupt", payload: {} });
    await settled(session);
    await eventually(() => commandsWith(place).length === 0);
    session.say("two");
    await settled(session, 2);
    expect(texts(3)).toEqual(["one", "two"]);
    expect(spoken(session)).toEqual(["Here."]);
  });

  it("works towards outcomes: the running program is told what was found wanting, and so is one that comes later", {
    timeout: TIMEOUT_MS,
  }, async () => {
    let calls = 0;
    await start((request) => {
      if (isGraders(request))
        return verdict(JSON.stringify(request.messages).includes("the second try"), true);
      const said = JSON.stringify(request.messages);
      if (said.includes("It does not meet the rubric yet")) return turn([text("This is the second try.")]);
      calls += 1;
      return calls % 2 === 1 ? turn([toolUse(CALL, { command: "paint" })]) : turn([text("Painted.")]);
    });
    const session = rig.server.createSession(AGENT);
    define(session, "Paint a ball.");
    await settled(session);
    expect(ends(session).map(({ result }) => result)).toEqual(["needs_revision", "satisfied"]);
    expect(spoken(session)).toEqual(["Painted.", "This is the second try."]);
    expect(stopReasons(session)).toEqual(["end_turn"]);
    const [graded] = rig.api.requests.filter(wasGraders);
    expect(wordsOf(graded!)).toMatch(
      /agent calls bash: {"command":"paint"}\n+result: ran paint\n+agent: Painted\./,
    );
    const agents = () => rig.api.requests.filter((request) => !wasGraders(request));
    expect(agents()).toHaveLength(3);
    expect(wordsOf(agents()[0]!)).toContain("Work towards this outcome:");
    // Whoever takes over where the verdict was the last word: a program of its own, with the transcript of the first.
    const log = session.events.slice(0, session.types().indexOf("span.outcome_evaluation_end") + 1);
    const resumed = rig.resume(log, AGENT);
    await settled(resumed);
    expect(ends(resumed).map(({ result }) => result)).toEqual(["needs_revision", "satisfied"]);
    expect(agents()).toHaveLength(4);
    const told = wordsOf(agents()[3]!);
    for (const words of ["Paint a ball.", "Painted.", "not met: It is blue."]) expect(told).toContain(words);
    expect([...rig.server.runs.values()]).toEqual([1]);
  });

  it("says what to install where the SDK is not", async () => {
    const { SdkMissing } = await import("../../harness/loops/claude-code/sdk.ts");
    const missing = (api: FakeMessagesApi) =>
      createClaudeCodeLoop({
        plain: {},
        model: { apiKey: api.apiKey, authToken: undefined, baseUrl: api.url },
        proxy: { httpsProxy: undefined, noProxy: undefined },
        defaultModel: "claude-test",
        maxProcesses: 1,
        clock: systemClock,
        load: () => Promise.reject(new SdkMissing()),
      });
    await start([], { loops: (api) => [missing(api)] });
    const session = rig.talk("go", AGENT);
    await settled(session);
    expect(session.payloads("session.error")).toMatchObject([
      {
        error: {
          type: "loop_failed_error",
          part: "harness",
          reason: "LOOP_NOT_INSTALLED",
          message: expect.stringMatching(/npm install @anthropic-ai\/claude-agent-sdk@\d/),
          retry_status: { type: "exhausted" },
        },
      },
    ]);
  });
});
