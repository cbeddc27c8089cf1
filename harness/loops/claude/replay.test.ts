/** Recorded logs, planned again: every request that was sent, and every decision about the context, from the log before it. */
import { readFileSync } from "node:fs";
import { create, fromJsonString } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { AgentSchema, type AgentSpec, AgentSpecSchema } from "../../../proto/gen/tendon/v1/agent_pb.js";
import { type Event, EventSchema } from "../../../proto/gen/tendon/v1/event_pb.js";
import { SlotToolsSchema } from "../../../proto/gen/tendon/v1/harness_service_pb.js";
import { historyEvent } from "../../session-view.ts";
import { toolCatalogue } from "../../tool-catalogue.ts";
import { decisionOf } from "./context-decision.ts";
import { claudeSettings } from "./loop-settings.ts";
import { type NextRequest, nextRequest, sizeOf } from "./next-request.ts";
import { requestParts } from "./plan.ts";

const golden = (name: string) =>
  readFileSync(new URL(`../../../test/golden/claude/${name}`, import.meta.url), "utf8");
const lines = (name: string) => golden(name).trimEnd().split("\n");
const INPUT = `{"type":"object","properties":{"command":{"type":"string"}}}`;
/** The tools that the recorded sessions' hands had. */
const TOOLS: Record<string, readonly string[]> = {
  session: ["bash", "read"],
  rich: ["bash", "read"],
  long: ["bash"],
  outcome: ["bash"],
  auto: ["bash"],
};

function next(name: string, spec: AgentSpec, history: readonly Event[]): NextRequest {
  const tools = (TOOLS[name] ?? []).map((tool) => ({
    name: tool,
    description: `Runs ${tool}.`,
    inputSchema: INPUT,
  }));
  const agent = create(AgentSchema, { spec });
  const catalogue = toolCatalogue(spec, [create(SlotToolsSchema, { tools })]);
  const parts = requestParts({ agent, tools: catalogue, history, defaultModel: "claude-default" });
  const settings = claudeSettings(spec.loopSettings);
  return nextRequest(parts, sizeOf(parts, settings.windowTokens ?? 200_000), settings);
}

interface Step {
  /** Of the log, up to where it was decided. */
  readonly history: readonly Event[];
  readonly next: NextRequest;
  /** The decision that the log has behind it, if it has one. */
  readonly recorded: Event | undefined;
}

/** All that the loop was asked, as a holder that lives through the whole session was. */
function replay(name: string, spec: AgentSpec, log: readonly Event[]): Step[] {
  const steps: Step[] = [];
  for (const [i, { type }] of log.entries()) {
    if (type !== "span.model_request_start") continue;
    for (let end = i + 1; ; ) {
      const history = log.slice(0, end);
      const step = next(name, spec, history);
      const following = log.slice(end).find((event) => event.type !== "agent.thread_context_compacted");
      const recorded = following?.type === "brain.context_changed" ? following : undefined;
      steps.push({ history, next: step, recorded });
      if (step.kind !== "change" || recorded === undefined) break;
      end = log.indexOf(recorded) + 1;
    }
  }
  return steps;
}

describe.each(Object.keys(TOOLS))("the recorded session %s", (name) => {
  const spec = fromJsonString(AgentSpecSchema, golden(`${name}.agent.json`));
  const log = lines(`${name}.log.ndjson`).flatMap((line) => {
    const { position, ...event } = JSON.parse(line);
    return historyEvent(create(EventSchema, { ...event, position: BigInt(position) })) ?? [];
  });
  const steps = replay(name, spec, log);
  const bodies = steps.flatMap((step) => (step.next.kind === "change" ? [] : [step.next.request.body]));

  it("gives the bytes of each request again, those for summaries too (R6)", () => {
    const requests = lines(`${name}.requests.ndjson`);
    expect(bodies).toHaveLength(requests.length);
    for (const [i, body] of bodies.entries()) expect(body, `request ${i + 1}`).toBe(requests[i]);
  });

  it("gives each decision about the context again, byte for byte", () => {
    const decided = steps.flatMap(({ next: step, recorded }) => {
      if (recorded === undefined) return [];
      if (step.kind === "ask") return [{ recorded: recorded.internal, again: "none" }];
      const decision = decisionOf(recorded);
      const summary = decision?.kind === "compact" ? decision.summary : "";
      const change = step.kind === "change" ? step.change : step.change(summary);
      return [{ recorded: recorded.internal, again: JSON.stringify(change.internal) }];
    });
    for (const { recorded, again } of decided) expect(again).toBe(recorded);
    expect(decided).toHaveLength(log.filter(({ type }) => type === "brain.context_changed").length);
  });

  it("gives the same bytes from a log of which the attempt of a dead holder is part", () => {
    for (const { history, next: step } of steps) {
      const again = [...history, ...deadAttempt(Number(history.at(-1)!.position))];
      const repeated = next(name, spec, again);
      if (step.kind === "change") expect(repeated).toEqual(step);
      else expect(repeated.kind !== "change" && repeated.request.body).toBe(step.request.body);
    }
  });

  it("begins every request with the one before, except where the log has a decision between them", () => {
    const plain = (body: string) => body.replaceAll(`,"cache_control":{"type":"ephemeral"}`, "");
    const asked = steps.filter((step) => step.next.kind === "ask");
    for (const [i, { history, next: step }] of asked.entries()) {
      const before = asked[i - 1];
      if (before === undefined || step.kind !== "ask" || before.next.kind !== "ask") continue;
      const between = history.slice(before.history.length);
      if (between.some(({ type }) => type === "brain.context_changed")) continue;
      const start = plain(before.next.request.body).replace(/\]\}\]\}$/, "");
      expect(plain(step.request.body).startsWith(start)).toBe(true);
    }
  });
});

function deadAttempt(position: number): Event[] {
  return [
    { id: "d1", type: "span.model_request_end", payload: `{"is_error":true}` },
    { id: "d2", type: "span.model_request_start", payload: "{}" },
  ].map((event, i) => create(EventSchema, { ...event, position: BigInt(position + i + 1) }));
}

describe("the recorded session long", () => {
  it("has all that can happen to a context", () => {
    const log = lines("long.log.ndjson").map((line) => JSON.parse(line));
    const changes = log
      .filter(({ type }) => type === "brain.context_changed")
      .map((e) => JSON.parse(e.internal));
    expect(changes.some(({ trim }) => trim !== undefined)).toBe(true);
    expect(changes.some(({ compact }) => compact?.keep_from > 0)).toBe(true);
    expect(changes.some(({ compact }) => compact?.keep_from === 0)).toBe(true);
    const notes = log.flatMap(({ internal }) => (internal ? [JSON.parse(internal).failure?.note?.kind] : []));
    expect(notes).toContain("prompt_too_long");
    expect(notes).toContain("no_summary");
  });
});
