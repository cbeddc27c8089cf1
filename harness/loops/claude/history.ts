/**
 * The messages of a request, rebuilt from the log alone. Pure: the same events give the same bytes, and a longer log gives
 * messages that begin with those of the shorter one.
 *
 * B1 What the model said goes back as it came: its blocks are kept in `internal` and put back in their order.
 * B2 A message appears where a request first contained it (L6), not where it was appended.
 * B3 Every tool use is followed by its result, at the head of the next user message, in the order of the calls (X3).
 * B4 An answer that was cut, refused or holds nothing a request may hold leaves no message.
 */
import type { Event } from "../../../proto/gen/tendon/v1/event_pb.js";
import { INTERRUPTED_TEXT } from "../../brain-events.ts";
import {
  answeredId,
  isObject,
  type Json,
  objectsOf,
  objectText,
  parseObject,
  payloadOf,
  stringOf,
  stringsOf,
} from "../../event-payload.ts";
import { inputBlocks, isBlank, jsonText, resultBlocks, textBlock } from "./blocks.ts";

/** A message whose blocks are JSON texts. */
export interface HistoryMessage {
  readonly role: "user" | "assistant" | "system";
  readonly blocks: string[];
}

export interface History {
  readonly messages: readonly HistoryMessage[];
  /** The last block of the request before: where its cached prefix ends. */
  readonly previousEnd: { readonly message: number; readonly block: number } | undefined;
}

export function buildHistory(events: readonly Event[], modelNameOf: (event: Event) => string): History {
  const builder = new HistoryBuilder(modelNameOf);
  for (const event of events) builder.add(event);
  return builder.finish();
}

interface Call {
  readonly eventId: string;
  readonly modelId: string;
}

class HistoryBuilder {
  private readonly messages: HistoryMessage[] = [];
  private readonly modelNameOf: (event: Event) => string;
  private readonly inputs = new Map<string, Event>();
  private readonly results = new Map<string, Event>();
  private readonly usedIds = new Set<string>();
  /** Blocks of the answer that is being read. */
  private answer: string[] = [];
  private answerCalls: Call[] = [];
  /** Calls of the newest answer that stands, whose results come next. */
  private calls: Call[] = [];
  private consumed: Event[] = [];
  private notes: string[] = [];
  private lastEnd: History["previousEnd"];
  private previousEnd: History["previousEnd"];

  constructor(modelNameOf: (event: Event) => string) {
    this.modelNameOf = modelNameOf;
  }

  add(event: Event): void {
    const answered = answeredId(event);
    if (answered !== "" && !this.results.has(answered)) this.results.set(answered, event);
    switch (event.type) {
      case "user.message":
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
        return;
      case "agent.thinking":
      case "agent.message":
      case "agent.tool_use":
      case "agent.custom_tool_use":
      case "agent.mcp_tool_use":
        this.addToAnswer(event);
        return;
      case "span.model_request_end":
        // An answer that broke off leaves nothing, unless its calls are in the log and so have results.
        if (payloadOf(event).is_error === true && this.answerCalls.length === 0) this.answer = [];
        this.keepAnswer();
    }
  }

  finish(): History {
    this.keepAnswer();
    return { messages: this.messages, previousEnd: this.previousEnd };
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
      if (block.type === "tool_use") this.answer.push(this.callBlock(event.id, block));
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

  private callBlock(eventId: string, block: Json): string {
    const own = stringOf(block.id);
    const isUsable = /^[a-zA-Z0-9_-]+$/.test(own) && !this.usedIds.has(own);
    const modelId = isUsable ? own : `toolu_${eventId}`;
    this.usedIds.add(modelId);
    this.answerCalls.push({ eventId, modelId });
    const text = stringOf(block.input_text);
    const written = objectText(text) ?? "{}";
    // Half of a surrogate pair is refused, however it is written.
    const input = /\\u[dD][89a-fA-F]/.test(written) ? jsonText(JSON.parse(written)) : written;
    return `{"type":"tool_use","id":${JSON.stringify(modelId)},"name":${jsonText(block.name)},"input":${input}}`;
  }

  private keepAnswer(): void {
    const blocks = this.answer;
    const calls = this.answerCalls;
    this.answer = [];
    this.answerCalls = [];
    while (blocks.length > 0 && /^\{"type":"(redacted_)?thinking"/.test(blocks.at(-1)!)) blocks.pop();
    if (blocks.length === 0) return;
    const last = this.messages.at(-1);
    // The rest of an answer that the model paused.
    if (last?.role === "assistant") last.blocks.push(...blocks);
    else this.messages.push({ role: "assistant", blocks });
    this.calls = calls;
  }

  /** What the model is told by the request that begins here. */
  private tellUser(): void {
    const results = this.calls.map((call) => this.resultBlock(call));
    this.calls = [];
    const system: string[][] = [];
    this.sayAsUser(results);
    for (const input of this.consumed) {
      const blocks = inputBlocks(payloadOf(input));
      if (input.type === "user.message") this.sayAsUser(blocks);
      else if (this.messages.at(-1)?.role === "user") this.messages.push({ role: "system", blocks });
      else system.push(blocks);
      // One that came before any user's word waits for it: it has to follow one.
      while (system.length > 0 && this.messages.at(-1)?.role === "user") {
        this.messages.push({ role: "system", blocks: system.shift()! });
      }
    }
    this.consumed = [];
    this.sayAsUser(this.notes.map(textBlock));
    this.notes = [];
    const message = this.messages.length - 1;
    if (message < 0) return;
    const end = { message, block: this.messages[message]!.blocks.length - 1 };
    // The same request once more has the same end, and so the same end before it.
    if (this.lastEnd?.message === end.message && this.lastEnd.block === end.block) return;
    this.previousEnd = this.lastEnd;
    this.lastEnd = end;
  }

  private sayAsUser(blocks: readonly string[]): void {
    if (blocks.length === 0) return;
    const last = this.messages.at(-1);
    if (last?.role === "user") last.blocks.push(...blocks);
    else this.messages.push({ role: "user", blocks: [...blocks] });
  }

  private resultBlock({ eventId, modelId }: Call): string {
    const result = this.results.get(eventId);
    const payload = result === undefined ? undefined : payloadOf(result);
    const isError = payload === undefined || payload.is_error === true;
    const content =
      payload === undefined ? [textBlock(INTERRUPTED_TEXT)] : resultBlocks(payload.content, isError);
    const head = `{"type":"tool_result","tool_use_id":${JSON.stringify(modelId)}`;
    const body = content.length === 0 ? "" : `,"content":[${content.join(",")}]`;
    return `${head}${body}${isError ? `,"is_error":true` : ""}}`;
  }
}

function environmentNamed(slot: string): string {
  return slot === "" ? "The execution environment" : `The execution environment "${slot}"`;
}

function handedOverNote(event: Event): string {
  const { slot, to_session_id: toSessionId } = payloadOf(event);
  const which = environmentNamed(stringOf(slot));
  return stringOf(toSessionId) === ""
    ? `[${which} was handed over to you by another session, with the files and processes that it has.]`
    : `[${which} was handed over to another session, with its files and processes. The next tool call gets a new, empty one.]`;
}

function lostNote(event: Event): string {
  const { slot, detail } = payloadOf(event);
  const which = environmentNamed(stringOf(slot));
  const why = stringOf(detail) === "" ? "" : ` (${stringOf(detail)})`;
  return `[${which} was lost${why}: its files and processes are gone. The next tool call gets a new, empty one.]`;
}
