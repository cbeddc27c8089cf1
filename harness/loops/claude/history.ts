/**
 * The messages of a request, rebuilt from the log alone. Pure: the same events give the same bytes, and a longer log gives
 * messages that begin with those of the shorter one, unless a decision in the log says otherwise.
 *
 * B1 What the model said goes back as it came: its blocks are kept in `internal` and put back in their order.
 * B2 A message appears where a request first contained it (L6), not where it was appended.
 * B3 Every tool use is followed by its result, at the head of the next user message, in the order of the calls (X3).
 * B4 An answer that was cut, refused or holds nothing a request may hold leaves no message.
 * B5 Messages change only where `brain.context_changed` stands in the log, and by what that says alone.
 */
import type { Event } from "../../../proto/gen/tendon/v1/event_pb.js";
import {
  answeredId,
  countOf,
  isObject,
  type Json,
  objectsOf,
  objectText,
  parseObject,
  payloadOf,
  stringOf,
  stringsOf,
} from "../../event-payload.ts";
import { handedOverNote, lostNote } from "../hand-notes.ts";
import { leaveOutAttachments } from "./attachments.ts";
import { isBlank, jsonText, textBlock } from "./blocks.ts";
import { type ContextDecision, decisionOf } from "./context-decision.ts";
import { type BlockPlace, type HistoryMessage, MessageList } from "./message-list.ts";
import { type RequestTrouble, TroubleCount } from "./request-trouble.ts";
import { spokenBlocks } from "./spoken-blocks.ts";
import { summaryMessages } from "./summary-messages.ts";
import { type PlacedResult, resultBlock, trimmedResultBlock } from "./tool-results.ts";

export interface History {
  readonly messages: readonly HistoryMessage[];
  /** Of all messages; see block-weight.ts. */
  readonly weight: number;
  /** The last block of the newest request that was answered: up to there the model API has seen it. */
  readonly answeredEnd: BlockPlace | undefined;
  /** Up to here nothing is left to trim; undefined while nothing was trimmed. */
  readonly settledEnd: BlockPlace | undefined;
  /** In the order of the messages. */
  readonly results: readonly PlacedResult[];
  /** Where requests began: an answer follows, or nothing. Oldest first. */
  readonly starts: readonly RequestStart[];
  /** Tokens and weight of the messages up to the newest answer whose usage is known. */
  readonly measured: { readonly tokens: number; readonly weight: number } | undefined;
  readonly trouble: RequestTrouble;
  /** Where what users and tools gave was put, also what is not among the messages any more. */
  readonly placed: readonly PlacedEvent[];
  /** Whether what was measured was measured before the newest decision. */
  readonly isMeasuredBefore: boolean;
}

export interface PlacedEvent {
  readonly eventId: string;
  readonly message: HistoryMessage;
  /** Its blocks in the message; `to` is not among them. */
  readonly from: number;
  readonly to: number;
}

export interface RequestStart {
  /** Of the event. */
  readonly position: number;
  /** The last message that the request held. */
  readonly message: HistoryMessage;
}

export function buildHistory(events: readonly Event[], modelNameOf: (event: Event) => string): History {
  const builder = new HistoryBuilder(modelNameOf);
  for (const event of events) builder.add(event);
  return builder.finish();
}

interface Call {
  readonly eventId: string;
  readonly position: number;
  readonly modelId: string;
}

class HistoryBuilder {
  private readonly list = new MessageList();
  private readonly modelNameOf: (event: Event) => string;
  private readonly inputs = new Map<string, Event>();
  private readonly resultEvents = new Map<string, Event>();
  private readonly usedIds = new Set<string>();
  /** Blocks of the answer that is being read. */
  private answer: string[] = [];
  private answerCalls: Call[] = [];
  /** Calls of the newest answer that stands, whose results come next. */
  private calls: Call[] = [];
  private consumed: Event[] = [];
  private notes: string[] = [];
  private requestEnd: BlockPlace | undefined;
  private answeredEnd: BlockPlace | undefined;
  private settledEnd: BlockPlace | undefined;
  private results: PlacedResult[] = [];
  private starts: RequestStart[] = [];
  private measured: History["measured"];
  private isMeasuredBefore = false;
  private readonly placed: PlacedEvent[] = [];
  /** What was said last from above, and where it stands. */
  private words: { readonly message: HistoryMessage; readonly blocks: readonly string[] } | undefined;
  private readonly trouble = new TroubleCount();

  constructor(modelNameOf: (event: Event) => string) {
    this.modelNameOf = modelNameOf;
  }

  add(event: Event): void {
    const answered = answeredId(event);
    if (answered !== "" && !this.resultEvents.has(answered)) this.resultEvents.set(answered, event);
    switch (event.type) {
      case "user.message":
      case "agent.thread_message_received":
      case "system.message":
        this.inputs.set(event.id, event);
        return;
      case "brain.inputs_consumed":
        this.consume(event);
        return;
      case "hand.lost":
        this.notes.push(lostNote(event));
        return;
      case "hand.handed_over":
        this.notes.push(handedOverNote(event));
        return;
      case "span.model_request_start":
        this.keepAnswer();
        this.tellUser();
        this.noteStart(event);
        return;
      case "agent.thinking":
      case "agent.message":
      case "agent.tool_use":
      case "agent.custom_tool_use":
      case "agent.mcp_tool_use":
        this.addToAnswer(event);
        return;
      case "brain.context_changed":
        this.change(decisionOf(event));
        return;
      case "span.model_request_end":
        this.endRequest(event);
    }
  }

  finish(): History {
    this.keepAnswer();
    const { list, answeredEnd, settledEnd, results, starts, measured, trouble } = this;
    const { messages, weight } = list;
    const { placed, isMeasuredBefore } = this;
    const built = { messages, weight, answeredEnd, settledEnd, results, starts, measured, trouble };
    return { ...built, placed, isMeasuredBefore };
  }

  private consume(event: Event): void {
    for (const id of stringsOf(payloadOf(event).event_ids)) {
      const input = this.inputs.get(id);
      if (input === undefined) continue;
      this.inputs.delete(id);
      this.consumed.push(input);
    }
  }

  private addToAnswer(event: Event): void {
    const kept = parseObject(event.internal).blocks;
    const blocks = Array.isArray(kept) ? objectsOf(kept) : this.blocksFromPayload(event);
    for (const block of blocks) {
      if (block.type === "tool_use") this.answer.push(this.callBlock(event, block));
      else if (block.type !== "text" || !isBlank(block.text)) this.answer.push(jsonText(block));
    }
  }

  /** For events that no model of this loop made: other loops', or those of an import without `internal`. */
  private blocksFromPayload(event: Event): Json[] {
    const payload = payloadOf(event);
    if (event.type === "agent.message") {
      return objectsOf(payload.content)
        .filter(({ type }) => type === "text")
        .map(({ text }) => ({ type: "text", text }));
    }
    if (event.type === "agent.thinking") return [];
    const input_text = JSON.stringify(isObject(payload.input) ? payload.input : {});
    return [{ type: "tool_use", id: "", name: this.modelNameOf(event), input_text }];
  }

  private callBlock({ id: eventId, position }: Event, block: Json): string {
    const own = stringOf(block.id);
    const isUsable = /^[a-zA-Z0-9_-]+$/.test(own) && !this.usedIds.has(own);
    const modelId = isUsable ? own : `toolu_${eventId}`;
    this.usedIds.add(modelId);
    this.answerCalls.push({ eventId, position: Number(position), modelId });
    const text = stringOf(block.input_text);
    const written = objectText(text) ?? "{}";
    // Half of a surrogate pair is refused, however it is written.
    const input = /\\u[dD][89a-fA-F]/.test(written) ? jsonText(JSON.parse(written)) : written;
    return `{"type":"tool_use","id":${JSON.stringify(modelId)},"name":${jsonText(block.name)},"input":${input}}`;
  }

  private endRequest(event: Event): void {
    const payload = payloadOf(event);
    const internal = parseObject(event.internal);
    const isError = payload.is_error === true;
    // An answer that broke off leaves nothing, unless its calls are in the log and so have results.
    if (isError && this.answerCalls.length === 0) this.answer = [];
    this.keepAnswer();
    this.trouble.requestEnded(isError, internal);
    if (isError || internal.stop === "context") return;
    this.answeredEnd = this.requestEnd;
    const tokens = totalTokens(payload.model_usage);
    if (tokens === 0) return;
    this.measured = { tokens, weight: this.list.weight };
    this.isMeasuredBefore = false;
  }

  private keepAnswer(): void {
    const blocks = this.answer;
    const calls = this.answerCalls;
    this.answer = [];
    this.answerCalls = [];
    while (blocks.length > 0 && /^\{"type":"(redacted_)?thinking"/.test(blocks.at(-1)!)) blocks.pop();
    if (blocks.length === 0) return;
    // Joins the part before where the model paused its answer.
    this.list.say("assistant", blocks);
    this.calls = calls;
  }

  /** What the model is told by the request that begins here. */
  private tellUser(): void {
    const { list } = this;
    this.tellResults();
    const system: string[][] = [];
    for (const input of this.consumed) {
      const blocks = spokenBlocks(input);
      if (input.type !== "system.message") {
        list.say("user", blocks);
        this.place(input, blocks.length);
        if (isFromAbove(input)) this.words = { message: list.last!, blocks };
      } else if (list.last?.role === "user") list.push("system", blocks);
      else system.push(blocks);
      // One that came before any user's word waits for it: it has to follow one.
      while (system.length > 0 && list.last?.role === "user") list.push("system", system.shift()!);
    }
    this.consumed = [];
    list.say("user", this.notes.map(textBlock));
    this.notes = [];
  }

  private tellResults(): void {
    const { list, calls, resultEvents } = this;
    this.calls = [];
    const blocks = calls.map(({ eventId, modelId }) => resultBlock(modelId, resultEvents.get(eventId)));
    list.say("user", blocks);
    const message = list.last;
    if (message === undefined) return;
    const first = message.blocks.length - blocks.length;
    for (const [i, { eventId, position, modelId }] of calls.entries()) {
      const event = resultEvents.get(eventId);
      const place = { message, block: first + i };
      this.results.push({ place, position, modelId, event, isTrimmed: false });
      if (event !== undefined)
        this.placed.push({ eventId: event.id, message, from: place.block, to: place.block + 1 });
    }
  }

  /** Its blocks are the last ones. */
  private place({ id: eventId }: Event, blocks: number): void {
    const message = this.list.last!;
    const to = message.blocks.length;
    this.placed.push({ eventId, message, from: to - blocks, to });
  }

  private noteStart({ position }: Event): void {
    const end = this.list.end();
    if (end === undefined) return;
    this.requestEnd = end;
    if (end.message.role !== "assistant")
      this.starts.push({ position: Number(position), message: end.message });
  }

  private change(decision: ContextDecision | undefined): void {
    this.isMeasuredBefore = this.measured !== undefined;
    if (decision?.kind === "trim") this.trim(decision.beforePosition, decision.keepChars);
    if (decision?.kind === "compact") this.compact(decision.keepFrom, decision.summary);
    if (decision?.kind !== "attachments") return;
    leaveOutAttachments(this.list, decision);
    this.trouble.attachmentsLeftOut();
  }

  private trim(beforePosition: number, keepChars: number): void {
    for (const result of this.results) {
      if (result.position >= beforePosition) {
        this.settledEnd = this.endBefore(result.place.message);
        return;
      }
      if (result.isTrimmed) continue;
      result.isTrimmed = true;
      const { message, block } = result.place;
      const trimmed = trimmedResultBlock(result, keepChars);
      if (trimmed.length < message.blocks[block]!.length) this.list.replace(result.place, trimmed);
    }
    this.settledEnd = undefined;
  }

  /** The end of what a request before this message held. */
  private endBefore(message: HistoryMessage): BlockPlace | undefined {
    const { messages } = this.list;
    const index = messages.indexOf(message);
    const before = messages.slice(0, Math.max(0, index)).findLast(({ role }) => role !== "assistant");
    return before && { message: before, block: before.blocks.length - 1 };
  }

  private compact(keepFrom: number, summary: string): void {
    const { list } = this;
    const start = this.starts.find(({ position }) => position === keepFrom);
    const tail = start === undefined ? [] : list.after(start.message);
    const dropped = list.messages.slice(0, list.messages.length - tail.length);
    const lostWords =
      this.words !== undefined && dropped.includes(this.words.message) ? this.words.blocks : [];
    const head = summaryMessages(summary, lostWords, dropped);
    list.replaceAllBefore(tail, head);
    // A further summary would lose them otherwise.
    if (lostWords.length > 0) this.words = { message: head[0]!, blocks: lostWords };
    const isKept = ({ message }: { readonly message: HistoryMessage }) => tail.includes(message);
    this.results = this.results.filter(({ place }) => isKept(place));
    this.starts = this.starts.filter(isKept);
    this.settledEnd = undefined;
    this.answeredEnd = undefined;
    this.trouble.compacted();
  }
}

/** What a user says, or who made this thread; not what its own threads say. */
function isFromAbove(input: Event): boolean {
  return input.type === "user.message" || payloadOf(input).from_parent === true;
}

/** Tokens of a request and its answer together. */
function totalTokens(reported: unknown): number {
  const usage = isObject(reported) ? reported : {};
  return (
    countOf(usage.input_tokens) +
    countOf(usage.cache_read_input_tokens) +
    countOf(usage.cache_creation_input_tokens) +
    countOf(usage.output_tokens)
  );
}
