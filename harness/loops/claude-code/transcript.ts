/**
 * The SDK's transcript of a session, from the log alone. Pure.
 *
 * T1 What the SDK wrote stands in `internal` of the answers that it belongs to, and is taken over as it is.
 * T2 Results of calls are not kept twice: they come from the log, so a call that has a result there is answered with it and
 *    never run again.
 * T3 What the log has beyond the newest answer (results, messages, what became of hands) is written in the SDK's form at the
 *    end; the SDK then goes on as with a turn that was interrupted. The same log gives the same ids.
 */
import { createHash } from "node:crypto";
import type { Event } from "../../../proto/gen/tendon/v1/event_pb.js";
import {
  answeredId,
  isObject,
  type Json,
  objectsOf,
  parseObject,
  payloadOf,
  stringOf,
  stringsOf,
} from "../../event-payload.ts";
import { handedOverNote, lostNote } from "../hand-notes.ts";
import { speakerNote } from "../speaker-note.ts";
import { inputContent, noteContent, resultBlock } from "./content.ts";

export const KEEPER = "claude-code";
/** Where the SDK runs, for its own notes: the same on every machine. */
export const DIRECTORY = "/";

/** One line of the SDK's transcript. */
export type Entry = Json & { readonly type: string };

export interface LogReading {
  /** What the SDK wrote up to its newest answer, with results from the log. */
  readonly kept: () => readonly Entry[];
  /** Calls of the newest answer that a program would be waiting for, by the model's ids, with their results. */
  readonly results: ReadonlyMap<string, Json>;
  /** What users and the platform said since, each with an id. */
  readonly said: readonly Said[];
}

export interface Said {
  readonly eventId: string;
  readonly content: readonly Json[];
}

/** In place of a result that stands in the log. */
const FROM_LOG = "tendon_from_log";

/** A session's history is one array that grows: what was read of it is not read again. */
const readers = new WeakMap<readonly Event[], { readonly reader: LogReader; read: number }>();

export function readLog(history: readonly Event[]): LogReading {
  const known = readers.get(history) ?? { reader: new LogReader(), read: 0 };
  readers.set(history, known);
  for (; known.read < history.length; known.read++) known.reader.take(history[known.read]!);
  return known.reader.reading();
}

class LogReader {
  private readonly inputs = new Map<string, Event>();
  private readonly results = new Map<string, Json>();
  /** Events of all calls, by the model's ids. */
  private readonly calls = new Map<string, string>();
  private readonly entries: Entry[] = [];
  private said: Said[] = [];
  private answer: string[] = [];
  private waiting: string[] = [];

  take(event: Event): void {
    const answered = answeredId(event);
    if (answered !== "" && !this.results.has(answered)) this.results.set(answered, payloadOf(event));
    switch (event.type) {
      case "user.message":
      case "agent.thread_message_received":
      case "system.message":
        this.inputs.set(event.id, event);
        return;
      case "brain.inputs_consumed":
        for (const id of stringsOf(payloadOf(event).event_ids)) this.hear(this.inputs.get(id));
        return;
      case "hand.lost":
        this.said.push({ eventId: event.id, content: noteContent(lostNote(event)) });
        return;
      case "hand.handed_over":
        this.said.push({ eventId: event.id, content: noteContent(handedOverNote(event)) });
        return;
      case "span.model_request_start":
        this.answer = [];
        return;
      case "agent.tool_use":
      case "agent.custom_tool_use":
      case "agent.mcp_tool_use":
        this.call(event);
        return;
      case "span.model_request_end":
        this.end(event);
    }
  }

  reading(): LogReading {
    const results = this.waiting.map((id) => [id, this.resultOf(id)] as const);
    return {
      kept: () => this.entries.map((entry) => this.filled(entry)),
      results: new Map(results.flatMap(([id, result]) => (result === undefined ? [] : [[id, result]]))),
      said: [...this.said],
    };
  }

  private hear(input: Event | undefined): void {
    if (input === undefined) return;
    this.inputs.delete(input.id);
    const content = inputContent(payloadOf(input));
    const isSystem = input.type === "system.message";
    const text = content.map(({ text }) => stringOf(text)).join("\n");
    const note = speakerNote(input);
    const spoken = note === undefined ? content : [{ type: "text", text: note }, ...content];
    this.said.push({ eventId: input.id, content: isSystem ? noteContent(text) : spoken });
  }

  private call(event: Event): void {
    const block = objectsOf(parseObject(event.internal).blocks).find(({ type }) => type === "tool_use");
    const id = stringOf(block?.id);
    if (id === "") return;
    this.calls.set(id, event.id);
    this.answer.push(id);
  }

  private end({ internal }: Event): void {
    const { kept } = parseObject(internal);
    if (!isObject(kept) || kept.by !== KEEPER || !isObject(kept.value)) return;
    for (const entry of objectsOf(kept.value.entries)) this.entries.push(entry as Entry);
    this.waiting = this.answer;
    this.said = [];
  }

  private resultOf(id: string): Json | undefined {
    return this.results.get(this.calls.get(id) ?? "");
  }

  private filled(entry: Entry): Entry {
    if (entry[FROM_LOG] === undefined || !isObject(entry.message)) return entry;
    const { [FROM_LOG]: ids, ...rest } = entry;
    const content = stringsOf(ids).map((id) => resultBlock(id, this.resultOf(id) ?? {}));
    return { ...rest, message: { ...entry.message, content } } as Entry;
  }
}

/** Entries as they are kept: without results, which the log has. */
export function lean(entries: readonly Entry[]): Entry[] {
  return entries.map((entry) => {
    const message = isObject(entry.message) ? entry.message : {};
    const blocks = objectsOf(message.content);
    if (entry.type !== "user" || !blocks.some(({ type }) => type === "tool_result")) return entry;
    const ids = blocks
      .filter(({ type }) => type === "tool_result")
      .map((block) => stringOf(block.tool_use_id));
    const { toolUseResult: _, ...rest } = entry;
    return { ...rest, message: { ...message, content: [] }, [FROM_LOG]: ids } as Entry;
  });
}

/** What has to stand behind the kept entries so that the SDK goes on by itself; see T3. */
export function continuation(reading: LogReading, sessionId: string, now: Date): Entry[] {
  const { results, said } = reading;
  const kept = reading.kept();
  const entries: Entry[] = [];
  const last = [...kept]
    .reverse()
    .find(({ uuid, isSidechain }) => typeof uuid === "string" && isSidechain !== true);
  let parentUuid = stringOf(last?.uuid) || null;
  const version = stringOf(last?.version);
  const add = (key: string, parent: string | null, content: readonly Json[], more: Json = {}) => {
    const uuid = uuidOf(`${sessionId}\n${key}`);
    entries.push({
      parentUuid: parent,
      isSidechain: false,
      type: "user",
      message: { role: "user", content },
      uuid,
      timestamp: now.toISOString(),
      ...more,
      userType: "external",
      entrypoint: "sdk-ts",
      cwd: DIRECTORY,
      sessionId,
      version,
    });
    parentUuid = uuid;
  };
  for (const [id, payload] of results) {
    const call = kept.find((entry) => entry.type === "assistant" && holdsCall(entry, id));
    const uuid = stringOf(call?.uuid);
    add(`result ${id}`, uuid || parentUuid, [resultBlock(id, payload)], { sourceToolAssistantUUID: uuid });
  }
  for (const { eventId, content } of said) add(`said ${eventId}`, parentUuid, content);
  return entries;
}

/** Whether the line is that of this call of the model. */
export function holdsCall({ message }: Entry, id: string): boolean {
  return isObject(message) && objectsOf(message.content).some((block) => block.id === id);
}

/** An id of the SDK's form that follows from the text alone. */
export function uuidOf(text: string): string {
  const hex = createHash("sha256").update(text).digest("hex");
  const variant = ((Number.parseInt(hex[16]!, 16) & 3) | 8).toString(16);
  return [
    hex.slice(0, 8),
    hex.slice(8, 12),
    `4${hex.slice(13, 16)}`,
    variant + hex.slice(17, 20),
    hex.slice(20, 32),
  ].join("-");
}
