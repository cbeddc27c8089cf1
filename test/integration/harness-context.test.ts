/** A context that outgrows the model's window: trimmed, summarised, by decisions in the log alone. */
import { create } from "@bufbuild/protobuf";
import { afterEach, describe, expect, it } from "vitest";
import { type AgentSpec, ToolSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { eventually } from "../kit/eventually.ts";
import { gate, type MessagesRequest, refusal, type Script, toolUse, turn } from "../kit/fake-messages-api.ts";
import { type Rig, type RigOptions, rested, spoken, startRig, stopReasons } from "../kit/harness-rig.ts";
import {
  isSummaryRequest,
  LONG_TOOLS,
  LONG_WINDOW_TOKENS,
  longAgent,
  longTurn,
} from "../kit/long-session.ts";
import type { ScriptedSession } from "../kit/scripted-session.ts";

let rig: Rig;
afterEach(() => rig.stop());

const start = async (script: Script = longTurn, model: RigOptions["model"] = {}) => {
  rig = await startRig({
    server: { tools: LONG_TOOLS },
    model: { script, maxInputTokens: LONG_WINDOW_TOKENS, ...model },
  });
};
const MARK = `,"cache_control":{"type":"ephemeral"}`;
const bodies = () => rig.api.requests.map(({ body }) => body.toString().replaceAll(MARK, ""));
const changes = (session: ScriptedSession) => session.payloads("brain.context_changed");
const errorsOf = (session: ScriptedSession) =>
  session.payloads("session.error").map(({ error }) => (error as { type: string }).type);

/** Bodies of requests in a row, where the second should go on from the first. */
const isExtended = (first: string, second: string) => second.startsWith(first.replace(/\]\}\]\}$/, ""));

describe("old results of tools", () => {
  it("are trimmed in few large steps, each a decision in the log; all other requests begin with the one before", async () => {
    await start(longTurn, { maxInputTokens: 8_000 });
    const context = { window_tokens: 8_000, compact: false, trim_results: { keep_chars: 50 } };
    const session = rig.talk("work to 14", longAgent(context));
    await rested(session, 1, 60_000);
    expect(spoken(session)).toEqual(["done at step 14"]);
    expect(rig.api.refusals).toEqual([]);
    const trims = changes(session);
    expect(trims.map(({ change }) => change)).toEqual(trims.map(() => "results_trimmed"));
    const all = bodies();
    const broken = all.slice(1).filter((body, i) => !isExtended(all[i]!, body));
    expect(broken.length).toBe(trims.length);
    expect(trims.length).toBeGreaterThanOrEqual(1);
    expect(trims.length).toBeLessThanOrEqual(3);
    // The log has every result whole, the last request only the newest.
    const results = session.payloads("agent.tool_result").map((payload) => JSON.stringify(payload));
    expect(results.every((text, i) => text.includes(`end-of-step-${i + 1}`))).toBe(true);
    expect(all.at(-1)).not.toContain('end-of-step-1"');
    expect(all.at(-1)).toContain("end-of-step-14");
    expect(all.at(-1)).toMatch(
      /The rest of this result was left out later, to save room. It had \d+ characters and is event \d+/,
    );
  });

  it("stay where the agent says so, or nothing much would become free", async () => {
    await start(longTurn, { maxInputTokens: 100_000 });
    const session = rig.talk("work to 12", longAgent({ compact: false, trim_results: false }));
    await rested(session, 1, 60_000);
    expect(changes(session)).toEqual([]);
    const all = bodies();
    expect(all.slice(1).every((body, i) => isExtended(all[i]!, body))).toBe(true);
  });
});

describe("a talk that fills the window", () => {
  it("is summarised by a request of its own, whose span and usage are in the log, and goes on from there", async () => {
    await start();
    const session = rig.talk("work to 20", longAgent({ compact: { keep_percent: 25 } }));
    await rested(session, 1, 60_000);
    expect(spoken(session)).toEqual(["done at step 20"]);
    expect(rig.api.refusals).toEqual([]);
    const compactions = changes(session).filter(({ change }) => change === "compacted");
    expect(compactions.length).toBeGreaterThanOrEqual(1);
    expect(session.types().filter((type) => type === "agent.thread_context_compacted")).toHaveLength(
      compactions.length,
    );
    // One batch: the decision, what clients are told, the span's end with what it cost.
    const at = session.events.findIndex(({ payload }) => payload.includes(`"compacted"`));
    const [change, told, end, next] = session.events.slice(at, at + 4);
    expect([told?.type, end?.type, next?.type]).toEqual([
      "agent.thread_context_compacted",
      "span.model_request_end",
      "span.model_request_start",
    ]);
    const { purpose, model_usage: usage } = JSON.parse(end!.payload);
    expect(purpose).toBe("context");
    expect(usage.output_tokens).toBeGreaterThan(0);
    // The summary is for brains only.
    expect(change!.payload).not.toContain("All is done");
    expect(change!.internal).toContain("All is done up to step");
    // Requests: one for each span, each within the window; the one for the summary goes on from the one before.
    expect(session.types().filter((type) => type === "span.model_request_start")).toHaveLength(
      rig.api.requests.length,
    );
    const all = bodies();
    const asked = all.findIndex((body) => body.includes("Write notes from which"));
    expect(isExtended(all[asked - 1]!, all[asked]!)).toBe(true);
    expect(all[asked + 1]).toContain("These notes stand in its place");
    expect(all[asked + 1]!.length).toBeLessThan(all[asked]!.length);
    // The newest step stays as it was.
    const newest = /end-of-step-\d+(?!.*end-of-step-\d+)/.exec(all[asked]!)?.[0];
    expect(all[asked + 1]).toContain(newest);
    expect(all[asked + 1]).toContain("work to 20");
  });

  it("shows watchers nothing of the summary while it forms", async () => {
    await start();
    const session = rig.talk("work to 20", longAgent());
    await rested(session, 1, 60_000);
    const shown = JSON.stringify(
      rig.server.previews.map(({ preview }) => preview),
      (_, value) => (typeof value === "bigint" ? String(value) : value),
    );
    expect(shown).toContain("done at step");
    expect(shown).not.toContain("summary");
  });

  it("keeps system messages, which hold on, and what the user said last word for word", async () => {
    await start();
    const session = rig.talk("work to 4", longAgent({ compact: { keep_percent: 0 } }));
    await rested(session, 1, 60_000);
    const text = (words: string) => ({ content: [{ type: "text", text: words }] });
    session.send(
      { type: "user.message", payload: text("In blue ink, work to 20") },
      { type: "system.message", payload: text("Say nothing of prices.") },
    );
    await rested(session, 2, 60_000);
    expect(changes(session).some(({ change }) => change === "compacted")).toBe(true);
    const last = bodies().at(-1)!;
    expect(last).toContain("In blue ink, work to 20");
    expect(last).toContain(`{"role":"system","content":[{"type":"text","text":"Say nothing of prices."}]}`);
    expect(rig.api.refusals).toEqual([]);
  });
});

describe("a request that the model API refuses as too long", () => {
  it("leads to a summary, and the limit that was named is kept to from then on", async () => {
    await start();
    // The agent is wrong about its model.
    const session = rig.talk("work to 25", longAgent({ window_tokens: 100_000 }));
    await rested(session, 1, 60_000);
    expect(spoken(session)).toEqual(["done at step 25"]);
    expect(rig.api.refusals).toHaveLength(1);
    expect(rig.api.refusals[0]).toContain("prompt is too long");
    expect(errorsOf(session)).toEqual(["model_request_failed_error"]);
    expect(changes(session).filter(({ change }) => change === "compacted").length).toBeGreaterThan(0);
  });

  it("is rare, as the model API is asked how much fits", async () => {
    const tools = { bash: LONG_TOOLS.bash! };
    const long: Script = (request) => longTurn(request);
    rig = await startRig({
      server: {
        tools: {
          bash: async (input, signal) => {
            const { text } = await tools.bash(input, signal);
            return { text: `${"A long line of output. ".repeat(400)}${text}` };
          },
        },
      },
      model: { script: long, maxInputTokens: 40_000 },
    });
    const session = rig.talk("work to 24", { ...longAgent(), loopSettings: "" });
    await rested(session, 1, 60_000);
    expect(spoken(session)).toEqual(["done at step 24"]);
    expect(rig.api.refusals).toEqual([]);
    expect(changes(session).length).toBeGreaterThan(0);
  });

  it("because one message alone is larger than the window leads to an answer all the same", async () => {
    await start();
    const session = rig.talk(`work to 0 ${"much text ".repeat(4_000)}`, longAgent());
    await rested(session, 1, 60_000);
    expect(spoken(session)).toEqual(["done at step 0"]);
    session.say("work to 2");
    await rested(session, 2, 60_000);
    expect(spoken(session).at(-1)).toBe("done at step 2");
  });

  it("whatever is done ends the turn after a bounded number of summaries, and the next message starts afresh", async () => {
    await start(longTurn, { maxInputTokens: 300 });
    const system = "You are thorough. ".repeat(100);
    const session = rig.talk("work to 3", { ...longAgent(), system });
    await rested(session, 1, 60_000);
    expect(stopReasons(session)).toEqual(["retries_exhausted"]);
    expect(errorsOf(session).at(-1)).toBe("compaction_limit_reached_error");
    expect(rig.api.requests.length).toBeLessThan(20);
    const before = rig.api.requests.length;
    session.say("again");
    await rested(session, 2, 60_000);
    expect(rig.api.requests.length).toBeGreaterThan(before);
  });

  it("is an ordinary failure for an agent that wants no summaries", async () => {
    await start();
    const session = rig.talk("work to 25", longAgent({ compact: false, trim_results: false }));
    await rested(session, 1, 60_000);
    expect(stopReasons(session)).toEqual(["retries_exhausted"]);
    expect(errorsOf(session).at(-1)).toBe("model_request_failed_error");
    expect(changes(session)).toEqual([]);
  });
});

describe("a summary", () => {
  it("that the model will not give is asked for a bounded number of times, then an extract takes its place", async () => {
    await start((request) => (isSummaryRequest(request) ? refusal(["no"], "cyber") : longTurn(request)));
    const session = rig.talk("work to 16", longAgent({ trim_results: false }));
    await rested(session, 1, 60_000);
    expect(spoken(session)).toEqual(["done at step 16"]);
    const [first] = changes(session);
    expect(first).toMatchObject({ change: "compacted", made_by: "harness" });
    const asked = bodies().filter((body) => body.includes("Write notes from which"));
    expect(asked.length % 3).toBe(0);
    // What the refused answers cost is counted.
    const failed = session.payloads("span.model_request_end").filter(({ is_error }) => is_error === true);
    expect(failed.length).toBe(asked.length);
    for (const { model_usage: usage } of failed) {
      expect((usage as { output_tokens: number }).output_tokens).toBeGreaterThan(0);
    }
  });

  it("may be interrupted: the turn ends, and the next message finds the talk as it was", async () => {
    const hold = gate();
    let summaries = 0;
    await start((request) => {
      const answer = longTurn(request);
      if (!isSummaryRequest(request) || answer.kind !== "answer") return answer;
      summaries += 1;
      return summaries === 1 ? { ...answer, before: { end: hold.opened } } : answer;
    });
    const session = rig.talk("work to 16", longAgent({ trim_results: false }));
    await eventually(() => summaries === 1);
    session.send({ type: "user.interrupt", payload: {} });
    await rested(session, 1);
    expect(session.payloads("session.status_idle").at(-1)).toMatchObject({ interrupted: {} });
    expect(changes(session)).toEqual([]);
    hold.open();
    session.say("work to 17");
    await rested(session, 2, 60_000);
    expect(spoken(session)).toEqual(["done at step 17"]);
    expect(rig.api.refusals).toEqual([]);
  });

  it("waits while the model is overloaded, as any request does", async () => {
    let failures = 2;
    await start((request) => {
      if (!isSummaryRequest(request) || failures === 0) return longTurn(request);
      failures -= 1;
      return { kind: "http_failure", status: 529, errorType: "overloaded_error", message: "Overloaded" };
    });
    const session = rig.talk("work to 16", longAgent({ trim_results: false }));
    await rested(session, 1, 60_000);
    expect(spoken(session)).toEqual(["done at step 16"]);
    expect(errorsOf(session)).toEqual(["model_overloaded_error", "model_overloaded_error"]);
    expect(changes(session)[0]).toMatchObject({ change: "compacted", made_by: "model" });
  });

  it("is told what the agent's settings add to the question", async () => {
    await start();
    const session = rig.talk("work to 20", longAgent({ compact: { instructions: "Name every file." } }));
    await rested(session, 1, 60_000);
    expect(bodies().filter((body) => body.includes("Name every file.")).length).toBeGreaterThan(0);
    expect(rig.api.refusals).toEqual([]);
  });
});

describe("settings of the claude loop that cannot be used", () => {
  it("end the turn with an error that names the field, and no model is asked", async () => {
    await start();
    const session = rig.talk("work to 1", longAgent({ compact: { at_percent: 200 } }));
    await rested(session);
    expect(stopReasons(session)).toEqual(["retries_exhausted"]);
    expect(session.payloads("session.error")).toMatchObject([
      {
        error: {
          type: "loop_failed_error",
          part: "harness",
          reason: "LOOP_NOT_CONFIGURED",
          message: expect.stringContaining(
            "loop_settings.context.compact.at_percent must be a whole number from 10 to 95",
          ),
        },
      },
    ]);
    expect(rig.api.requests).toHaveLength(0);
  });
});

describe("session_history", () => {
  const agent = (): AgentSpec => {
    const spec = longAgent({ compact: false, trim_results: { keep_chars: 0 } });
    spec.tools.push(
      create(ToolSchema, { kind: { case: "brainToolset", value: { names: ["session_history"] } } }),
    );
    return spec;
  };
  /** Steps until told what to look for. */
  const asks = (input: object) => (request: MessagesRequest) => {
    const last = JSON.stringify(request.messages.at(-1));
    if (last.includes("look it up")) return turn([toolUse("session_history", input)]);
    return last.includes("tool_result") && JSON.stringify(request.messages).includes("look it up")
      ? turn(["seen"])
      : longTurn(request);
  };
  const lookUp = async (input: object) => {
    await start(asks(input));
    const session = rig.talk("work to 8", agent());
    await rested(session, 1, 60_000);
    expect(changes(session).length).toBeGreaterThan(0);
    session.say("look it up");
    await rested(session, 2, 60_000);
    const { content, is_error } = session.payloads("agent.tool_result").at(-1)!;
    return { session, isError: is_error, text: (content as { text: string }[])[0]!.text };
  };

  it("gives the model a result whole that was trimmed in its context, by its text", async () => {
    const { session, text, isError } = await lookUp({ text: "END-OF-STEP-1", types: ["agent.tool_result"] });
    expect(isError).toBe(false);
    expect(text).toContain("end-of-step-1");
    const { position } = session.events.find(({ type }) => type === "agent.tool_result")!;
    expect(text).toContain(`[${position}] agent.tool_result`);
    expect(text).not.toContain("end-of-step-2");
    expect(rig.api.requests.at(-2)!.body.toString()).not.toContain('end-of-step-1"');
  });

  it("gives one event whole by its position, and says when there is none", async () => {
    const { text } = await lookUp({ position: 1 });
    expect(text).toContain("[1] user.message");
    expect(text).toContain("content[0].text: work to 8");
    await rig.stop();
    expect(await lookUp({ position: 100_000 })).toMatchObject({ isError: true });
  });

  it("shows nothing of internal, no spans, no events of clients' own types, and no message that waits", async () => {
    await start(asks({ limit: 50 }));
    const session = rig.talk("work to 3", agent());
    await rested(session, 1, 60_000);
    session.send({ type: "acme.noted", payload: { secret: "for clients" } });
    session.say("look it up");
    await rested(session, 2, 60_000);
    const [{ text }] = session.payloads("agent.tool_result").at(-1)!.content as [{ text: string }];
    expect(text).toContain("user.message");
    expect(text).toContain("agent.tool_use");
    expect(text).not.toMatch(/span\.|acme\.|for clients|toolu_|input_text|brain\./);
  });
});
