/**
 * The words of the `external` loop, one JSON object a line (docs/loops.md). Pure: what a program is told, and what its
 * lines come to. A program's lines are not trusted: whatever they hold ends in a proposal or in a `BadProgram`.
 */
import type { Event } from "../../../proto/gen/tendon/v1/event_pb.js";
import { countOf, isObject, type Json, objectText, parseObject, stringOf } from "../../event-payload.ts";
import type { McpAddress } from "../../mcp-relay/session-relay.ts";
import type { LoopFault, LoopOutcome, LoopPreview, LoopTurn, ProposedEvent, ResponseStop } from "../loop.ts";

export const PROTOCOL = 1;
/** Of one line that a program writes, without its end. */
export const MAX_LINE_BYTES = 1024 * 1024;
/** Of all lines of one step. */
export const MAX_STEP_BYTES = 16 * 1024 * 1024;
/** Messages, thoughts and calls of one step. One append takes 256 events: all parts, a result for each, and the step's end. */
export const MAX_PARTS = 120;
/** Of objects and lists in each other: what is nested deeper can be read by a parser, and written out again by none. */
const MAX_NESTING = 500;
const MAX_PART_NAME_CHARS = 64;
const MAX_FAILURE_CHARS = 1_000;
/** A program that breaks the rules does so again. */
const MAX_FAULTS = 3;

const STOPS = ["done", "paused", "refusal", "limit"] as const;
const FAILURES = {
  overloaded: "model_overloaded_error",
  rate_limited: "model_rate_limited_error",
  failed: "model_request_failed_error",
  billing: "billing_error",
} as const;

/** What a program did that it may not. */
export class BadProgram extends Error {
  override readonly name = "BadProgram";
  readonly reason: LoopFault["reason"];

  constructor(reason: LoopFault["reason"], message: string) {
    super(message);
    this.reason = reason;
  }
}

/** How a step ends whose program cannot be used. */
export function faultOf(
  reason: LoopFault["reason"],
  message: string,
  more: { maxAttempts?: number; began?: boolean } = {},
): LoopOutcome {
  const { maxAttempts = MAX_FAULTS, began = false } = more;
  const origin = { part: "harness" as const, reason };
  const failure = {
    type: "loop_failed_error" as const,
    message,
    maxAttempts,
    retryAfterMs: undefined,
    began,
  };
  return { kind: "failed", failure: { ...failure, origin } };
}

/** The first line. */
export function helloLine(
  { agent, sessionId, tools }: LoopTurn,
  model: string,
  mcpServers: readonly McpAddress[],
): string {
  const { name, system, loopSettings } = agent.spec ?? {};
  return JSON.stringify({
    type: "hello",
    protocol: PROTOCOL,
    session_id: sessionId,
    agent: {
      id: agent.id,
      version: Number(agent.version),
      name: name ?? "",
      model,
      system: system ?? "",
      settings: parseObject(loopSettings ?? ""),
    },
    tools: tools.offered.map(({ modelName, description, inputSchema }) => ({
      name: modelName,
      description,
      input_schema: parseObject(inputSchema),
    })),
    mcp_servers: mcpServers,
    limits: { line_bytes: MAX_LINE_BYTES, step_bytes: MAX_STEP_BYTES, parts: MAX_PARTS },
  });
}

/** An event without `internal`; of that only what this program itself had kept is told. */
export function eventLine(event: Event, keeper: string): string {
  const { id, position, type, payload, internal } = event;
  const kept = keptBy(internal, keeper);
  // The type comes first, for programs that look at a line's beginning alone.
  const head = `"type":${JSON.stringify(type)},"id":${JSON.stringify(id)},"position":${position}`;
  const more = kept === undefined ? "" : `,"kept":${JSON.stringify(kept)}`;
  // A payload that is written over several lines would be several lines here.
  const body = /[\r\n]/.test(payload) ? JSON.stringify(parseObject(payload)) : (objectText(payload) ?? "{}");
  return `{"type":"event","event":{${head},"payload":${body}${more}}}`;
}

export function stepLine(step: number, maxSilenceMs: number): string {
  return JSON.stringify({ type: "step", step, max_silence_ms: maxSilenceMs });
}

/** What a loop left for itself in an event; undefined when another did, or nobody. */
export function keptBy(internal: string, keeper: string): unknown {
  const { kept } = parseObject(internal);
  return isObject(kept) && kept.by === keeper ? kept.value : undefined;
}

export interface StepReaderOptions {
  /** Under which the program's own memory is kept. */
  readonly keeper: string;
  readonly newEventId: () => string;
  readonly preview: (preview: LoopPreview) => void;
}

/** Takes the lines of one step, until one of them is its outcome. */
export class StepReader {
  private readonly options: StepReaderOptions;
  private readonly events: ProposedEvent[] = [];
  /** Messages whose previews were shown, by the name that the program gave them. */
  private readonly previewed = new Map<string, string>();
  private bytes = 0;

  constructor(options: StepReaderOptions) {
    this.options = options;
  }

  /** Whether the program has said anything yet. */
  get began(): boolean {
    return this.bytes > 0;
  }

  /** The outcome, once the line is the last one. Throws BadProgram. */
  take(line: string): LoopOutcome | undefined {
    this.bytes += Buffer.byteLength(line);
    if (this.bytes > MAX_STEP_BYTES) {
      throw new BadProgram("LOOP_TOO_MUCH", `it wrote more than ${MAX_STEP_BYTES} bytes for one step`);
    }
    const said = lineObject(line);
    switch (said.type) {
      case "preview":
        this.showPreview(said);
        return undefined;
      case "thinking":
        this.add({ kind: "thinking", eventId: this.options.newEventId(), blocks: [] });
        return undefined;
      case "message":
        this.addMessage(said);
        return undefined;
      case "call":
        this.addCall(said);
        return undefined;
      case "end":
        return this.outcome(said);
      case "fail":
        return failureOf(said, this.events.length > 0 || this.previewed.size > 0);
      default:
        throw badLine(`its "type" is none that the protocol has`);
    }
  }

  private add(event: ProposedEvent): void {
    if (this.events.length >= MAX_PARTS) {
      throw new BadProgram("LOOP_TOO_MUCH", `it proposed more than ${MAX_PARTS} parts in one step`);
    }
    this.events.push(event);
  }

  private showPreview(said: Json): void {
    const text = needText(said, "text");
    const part = partOf(said);
    let eventId = this.previewed.get(part);
    if (eventId === undefined) {
      if (this.previewed.size >= MAX_PARTS) return;
      eventId = this.options.newEventId();
      this.previewed.set(part, eventId);
      this.options.preview({ kind: "start", eventId, type: "agent.message" });
    }
    this.options.preview({ kind: "text", eventId, index: 0, text });
  }

  private addMessage(said: Json): void {
    const text = needText(said, "text");
    const part = partOf(said);
    const eventId = this.previewed.get(part) ?? this.options.newEventId();
    this.previewed.delete(part);
    if (text.trim() === "") return;
    this.add({
      kind: "message",
      eventId,
      texts: [text],
      blocks: [JSON.stringify({ type: "text", text })],
    });
  }

  private addCall(said: Json): void {
    const name = needText(said, "name");
    if (!isObject(said.input)) throw badLine(`a "call" needs an object as its "input"`);
    const inputText = JSON.stringify(said.input);
    const block = { type: "tool_use", id: "", name, input_text: inputText };
    const blocks = [JSON.stringify(block)];
    const eventId = this.options.newEventId();
    this.add({ kind: "call", eventId, modelName: name, inputText, problem: undefined, blocks });
  }

  private outcome(said: Json): LoopOutcome {
    const kind = STOPS.find((stop) => stop === (said.stop ?? "done"));
    if (kind === undefined) throw badLine(`an "end" has a "stop" of ${STOPS.join(", ")}`);
    const hasCalls = this.events.some((event) => event.kind === "call");
    const stop: ResponseStop = { kind: hasCalls && kind !== "refusal" ? "done" : kind, reason: kind };
    const usage = isObject(said.usage) ? said.usage : {};
    return {
      kind: "response",
      response: {
        events: this.events,
        stop,
        usage: {
          inputTokens: tokens(usage.input_tokens),
          outputTokens: tokens(usage.output_tokens),
          cacheReadInputTokens: tokens(usage.cache_read_input_tokens),
          cacheCreationInputTokens: tokens(usage.cache_creation_input_tokens),
        },
        ...(said.keep === undefined ? {} : { keep: { by: this.options.keeper, value: said.keep } }),
      },
    };
  }
}

function failureOf(said: Json, began: boolean): LoopOutcome {
  const reason = stringOf(said.reason) || "failed";
  if (!Object.hasOwn(FAILURES, reason)) {
    throw badLine(`a "fail" has a "reason" of ${Object.keys(FAILURES).join(", ")}`);
  }
  const type = FAILURES[reason as keyof typeof FAILURES];
  const message = stringOf(said.message).slice(0, MAX_FAILURE_CHARS) || "The loop's program gave up.";
  const retryAfterMs = countOf(said.retry_after_ms) || undefined;
  const maxAttempts = type === "billing_error" || said.final === true ? 1 : Number.POSITIVE_INFINITY;
  return { kind: "failed", failure: { type, message, maxAttempts, retryAfterMs, began } };
}

function lineObject(line: string): Json {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    throw badLine("it is not JSON");
  }
  if (!isObject(value)) throw badLine("it is not a JSON object");
  if (isNestedDeeper(value, MAX_NESTING)) throw badLine(`it is nested more than ${MAX_NESTING} deep`);
  return value;
}

/** Level by level: the stack is not deep enough for what this looks for. */
function isNestedDeeper(value: unknown, most: number): boolean {
  const isNest = (item: unknown): item is object => typeof item === "object" && item !== null;
  let level = [value].filter(isNest);
  for (let depth = 0; level.length > 0; depth++) {
    if (depth >= most) return true;
    level = level.flatMap((nest) => Object.values(nest).filter(isNest));
  }
  return false;
}

function badLine(why: string): BadProgram {
  return new BadProgram("LOOP_BAD_LINE", `it wrote a line that the protocol does not have: ${why}`);
}

function needText(said: Json, field: string): string {
  const text = said[field];
  if (typeof text !== "string") throw badLine(`a "${stringOf(said.type)}" needs a "${field}"`);
  return text;
}

function partOf({ part }: Json): string {
  if (part === undefined) return "";
  if (typeof part !== "string" || part.length > MAX_PART_NAME_CHARS) {
    throw badLine(`a "part" is a string of at most ${MAX_PART_NAME_CHARS} characters`);
  }
  return part;
}

function tokens(value: unknown): number {
  return Math.min(Math.floor(countOf(value)), Number.MAX_SAFE_INTEGER);
}
