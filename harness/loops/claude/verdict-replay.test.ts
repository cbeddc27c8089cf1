/** Recorded logs with verdicts of models: what grader and judge were asked follows from the log before it, byte for byte. */
import { readFileSync } from "node:fs";
import { create, fromJsonString } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { systemClock } from "../../../kit/clock.ts";
import { type AgentSpec, AgentSpecSchema } from "../../../proto/gen/tendon/v1/agent_pb.js";
import { type Event, EventSchema } from "../../../proto/gen/tendon/v1/event_pb.js";
import { SlotToolsSchema } from "../../../proto/gen/tendon/v1/harness_service_pb.js";
import { callTarget } from "../../call-target.ts";
import { type Json, objectsOf, parseObject, payloadOf, stringOf, stringsOf } from "../../event-payload.ts";
import { graderQuestion } from "../../outcome/grader-request.ts";
import { CallJudge } from "../../permission/call-judge.ts";
import { applyEvent } from "../../session-fold.ts";
import { newSessionState } from "../../session-state.ts";
import { historyEvent } from "../../session-view.ts";
import type { TextModel } from "../../text-model.ts";
import { toolCatalogue } from "../../tool-catalogue.ts";
import type { ProposedEvent } from "../loop.ts";
import { createTextModel } from "./text-requests.ts";

const golden = (name: string) =>
  readFileSync(new URL(`../../../test/golden/claude/${name}`, import.meta.url), "utf8");
const lines = (name: string) => golden(name).trimEnd().split("\n");
const logOf = (name: string) =>
  lines(`${name}.log.ndjson`).map((line) => {
    const { position, ...event } = JSON.parse(line);
    return create(EventSchema, { ...event, position: BigInt(position) });
  });

/** Keeps the bytes of what it is asked, and knows no answer. */
function collector(): { readonly bodies: string[]; readonly model: TextModel } {
  const bodies: string[] = [];
  const client = {
    stream(body: string): never {
      bodies.push(body);
      throw new Error("nothing is asked here");
    },
  };
  const asking = createTextModel(client, "claude-default");
  const failure = {
    type: "billing_error",
    message: "",
    maxAttempts: 1,
    retryAfterMs: undefined,
    began: false,
  } as const;
  const ask: TextModel["ask"] = async (question, signal) => {
    await expect(asking.ask(question, signal)).rejects.toThrow("nothing is asked here");
    return { kind: "failed", failure };
  };
  return { bodies, model: { ...asking, ask } };
}

const NEVER = new AbortController().signal;

describe("the recorded session outcome", () => {
  it("gives the bytes of each request to its grader again, after trouble too (R6)", async () => {
    const { bodies, model } = collector();
    const state = newSessionState();
    const history: Event[] = [];
    for (const event of logOf("outcome")) {
      applyEvent(state, event);
      const seen = historyEvent(event);
      if (seen !== undefined) history.push(seen);
      const evaluation = state.outcome?.evaluation;
      const isAsked = event.type.startsWith("span.outcome_evaluation") && evaluation !== undefined;
      // A heartbeat without an attempt says only that it goes on.
      if (!isAsked || (event.type.endsWith("_ongoing") && event.internal === "")) continue;
      const question = graderQuestion(state.outcome!, evaluation, history);
      await model.ask({ ...question, model: evaluation.model, maxTokens: 16_000, maxSilenceMs: 1 }, NEVER);
    }
    expect(bodies).toEqual(lines("outcome.verdicts.ndjson"));
  });

  it("has all that becomes of an evaluation", () => {
    const log = logOf("outcome");
    const results = log
      .filter(({ type }) => type === "span.outcome_evaluation_end")
      .map((event) => payloadOf(event).result);
    expect(results).toEqual(["needs_revision", "max_iterations_reached", "satisfied"]);
    const attempts = log
      .filter(({ type, internal }) => type === "span.outcome_evaluation_ongoing" && internal !== "")
      .map(({ internal }) => (parseObject(internal).attempt as Json).kind);
    expect(attempts).toEqual(["failed", "unreadable"]);
  });
});

describe("the recorded session auto", () => {
  const spec: AgentSpec = fromJsonString(AgentSpecSchema, golden("auto.agent.json"));
  const inputSchema = `{"type":"object","properties":{"command":{"type":"string"}}}`;
  const bash = { name: "bash", description: "Runs bash.", inputSchema };
  const catalogue = toolCatalogue(spec, [create(SlotToolsSchema, { tools: [bash] })]);

  it("gives the bytes of each question to its judge again: calls are judged by what stands before them", async () => {
    const { bodies, model } = collector();
    const judge = new CallJudge({ model, modelId: undefined, clock: systemClock, retryMs: 1 });
    const history: Event[] = [];
    const log = logOf("auto");
    for (const [at, event] of log.entries()) {
      const seen = historyEvent(event);
      if (seen !== undefined) history.push(seen);
      if (event.type !== "brain.judging_began") continue;
      const { tool_use_ids, model: asked } = payloadOf(event);
      const end = log.findIndex(({ type }, n) => n > at && type === "span.model_request_end");
      const answer = log.slice(at, end).flatMap(proposed);
      const calls = answer.flatMap((part) => {
        if (part.kind !== "call" || !stringsOf(tool_use_ids).includes(part.eventId)) return [];
        const { tool, input } = callTarget(part, catalogue);
        return [{ eventId: part.eventId, tool: tool!, input }];
      });
      const context = { instructions: spec.system, history, answer };
      await judge.judge(calls, context, stringOf(asked), NEVER, () => {});
    }
    // Those of one answer are asked side by side.
    expect(bodies.toSorted()).toEqual(lines("auto.verdicts.ndjson").toSorted());
  });

  it("has all that becomes of a call, and nothing of it is decided again", () => {
    const log = logOf("auto");
    const uses = log.filter(({ type }) => type === "agent.tool_use").map((event) => payloadOf(event));
    expect(uses.map(({ evaluation }) => (evaluation as Json).evaluated_permission)).toEqual([
      { type: "allow" },
      { type: "deny", reason_code: "high_risk" },
      { type: "ask", reason_code: "indeterminate" },
      { type: "ask", reason_code: "indeterminate" },
    ]);
    const state = newSessionState();
    for (const event of log) {
      applyEvent(state, event);
      const permission = payloadOf(event).evaluated_permission;
      if (event.type === "agent.tool_use") expect(state.openCalls.get(event.id)?.permission).toBe(permission);
    }
    expect(state.openCalls.size).toBe(0);
  });
});

/** What the model said, as it was before it was in the log. */
function proposed(event: Event): ProposedEvent[] {
  const blocks = objectsOf(parseObject(event.internal).blocks);
  const raw = blocks.map((block) => JSON.stringify(block));
  const { id: eventId } = event;
  if (event.type === "agent.message") {
    const texts = objectsOf(payloadOf(event).content).map(({ text }) => stringOf(text));
    return [{ kind: "message", eventId, texts, blocks: raw }];
  }
  if (event.type !== "agent.tool_use") return [];
  const call = blocks.find(({ type }) => type === "tool_use");
  const inputText = stringOf(call?.input_text) || JSON.stringify(call?.input ?? {});
  return [
    { kind: "call", eventId, modelName: stringOf(call?.name), inputText, problem: undefined, blocks: raw },
  ];
}
