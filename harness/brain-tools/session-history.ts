/**
 * `session_history`: the model reads its session's log, also what its requests do not hold any more. It sees what clients
 * see, and no message before its turn has come. Every answer is bounded and says where to go on.
 */
import { create } from "@bufbuild/protobuf";
import { type Event, EventSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { EventOrder } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { Json } from "../event-payload.ts";
import type { BrainCall, BrainTool, BrainToolResult } from "./brain-tool.ts";
import { refusal } from "./brain-tool.ts";
import { eventText, eventTitle } from "./event-text.ts";
import { type HistoryQuery, historyQuery, isReadable } from "./history-query.ts";

const DESCRIPTION = `Reads the log of this session: everything that was said, called and answered from its beginning, also what was left out of this conversation to save room.

With "position": that event whole, 20000 characters at a time ("from_char" goes on). Otherwise: a list of events with excerpts, the newest first; "types" and "text" choose among them, "before" and "after" are positions to go on from.`;

const INPUT_SCHEMA = JSON.stringify({
  type: "object",
  properties: {
    position: { type: "integer", minimum: 1, description: "Show this one event whole." },
    from_char: { type: "integer", minimum: 0, description: "With position: the first character to show." },
    types: {
      type: "array",
      items: { type: "string" },
      maxItems: 16,
      description:
        "Only events of these types, such as user.message, agent.message, agent.tool_use, agent.tool_result.",
    },
    text: {
      type: "string",
      maxLength: 200,
      description: "Only events that contain this text; case does not matter.",
    },
    before: { type: "integer", minimum: 1, description: "Only events before this position." },
    after: { type: "integer", minimum: 0, description: "Only events after this position." },
    oldest_first: { type: "boolean" },
    limit: { type: "integer", minimum: 1, maximum: 50, description: "How many events; 20 unless told." },
  },
});

const PAGE_EVENTS = 500;
const PAGE_BYTES = 1024 * 1024;
/** Of one call; the answer says where the next one goes on. */
const MAX_PAGES = 20;
const READ_DEADLINE_MS = 15_000;
const MAX_ANSWER_CHARS = 20_000;
const EXCERPT_CHARS = 600;

export const sessionHistory: BrainTool = {
  name: "session_history",
  description: DESCRIPTION,
  inputSchema: INPUT_SCHEMA,
  async run(input: Json, call: BrainCall, signal: AbortSignal): Promise<BrainToolResult> {
    const query = historyQuery(input);
    if (typeof query === "string") return refusal(query);
    if (query.position !== undefined) return showOne(call, query.position, query.fromChar, signal);
    return list(call, query, signal);
  },
};

async function showOne(
  call: BrainCall,
  position: number,
  fromChar: number,
  signal: AbortSignal,
): Promise<BrainToolResult> {
  const { events } = await readPage(call, { after: position - 1, before: position + 1, limit: 1 }, signal);
  const event = events.find((found) => isShown(call, found));
  if (event === undefined) return refusal(`There is no event at position ${position} that you could read.`);
  const text = eventText(event);
  const end = Math.min(text.length, fromChar + MAX_ANSWER_CHARS);
  const more = end < text.length ? `\n[${text.length - end} more characters: from_char ${end}]` : "";
  return { text: `${eventTitle(event)}\n${text.slice(fromChar, end)}${more}` };
}

async function list(call: BrainCall, query: HistoryQuery, signal: AbortSignal): Promise<BrainToolResult> {
  const found: string[] = [];
  let chars = 0;
  let { after, before } = query;
  for (let page = 0; page < MAX_PAGES; page++) {
    const { events, hasMore } = await readPage(call, { ...query, after, before, limit: PAGE_EVENTS }, signal);
    for (const event of events) {
      const excerpt = isShown(call, event) ? excerptOf(event, query.text) : undefined;
      if (excerpt !== undefined) {
        const entry = `${eventTitle(event)}\n${excerpt}`;
        if (found.length >= query.limit || chars + entry.length > MAX_ANSWER_CHARS) {
          return answer(found, query, after, before);
        }
        found.push(entry);
        chars += entry.length;
      }
      if (query.oldestFirst) after = Number(event.position);
      else before = Number(event.position);
    }
    if (!hasMore) return answer(found);
  }
  return answer(found, query, after, before);
}

/** With a query it is not the end: the next call goes on from the position. */
function answer(found: readonly string[], query?: HistoryQuery, after = 0, before = 0): BrainToolResult {
  const parts = found.length === 0 ? ["No such events."] : [...found];
  if (query !== undefined) {
    const next = query.oldestFirst ? `after ${after}` : `before ${before}`;
    const where = query.oldestFirst ? `up to position ${after}` : `from position ${before} on`;
    parts.push(
      found.length === 0
        ? `[Looked at all ${where}; to look further: ${next}]`
        : `[There may be more: ${next}]`,
    );
  }
  return { text: parts.join("\n\n") };
}

interface Page extends Pick<Partial<HistoryQuery>, "types" | "oldestFirst"> {
  readonly after: number;
  /** 0: up to the end. */
  readonly before: number;
  readonly limit: number;
}

/** Without a proof of the lease, so that `internal` does not even come here. */
async function readPage(call: BrainCall, page: Page, signal: AbortSignal) {
  const { server, sessionId, view } = call;
  const { events, hasMore } = await server.sessions.getEvents(
    {
      sessionId,
      afterPosition: BigInt(page.after),
      beforePosition: BigInt(page.before),
      limit: page.limit,
      maxBytes: PAGE_BYTES,
      types: [...(page.types ?? [])],
      order: page.oldestFirst ? EventOrder.ASCENDING : EventOrder.DESCENDING,
    },
    { signal, deadlineMs: READ_DEADLINE_MS },
  );
  const whole = (event: Event) => {
    if (event.payloadOmitted === undefined) return event;
    const known = view.history.find(({ id }) => id === event.id);
    const note = JSON.stringify({ omitted: `${event.payloadOmitted.sizeBytes} bytes, too many to be shown` });
    return create(EventSchema, { ...event, payload: known?.payload ?? note });
  };
  return { events: events.map(whole), hasMore };
}

/** Neither this call, nor what is another thread's, nor a message that the model has not been given yet (L6). */
function isShown({ view, eventId: ownId }: BrainCall, { id, type, threadId }: Event): boolean {
  const isWaiting = view.state.waiting.some(({ eventId }) => eventId === id);
  return threadId === "" && id !== ownId && !isWaiting && isReadable(type);
}

/** Undefined when the text is not in it. */
function excerptOf(event: Event, text: string): string | undefined {
  const whole = eventText(event);
  const at = text === "" ? 0 : whole.toLowerCase().indexOf(text.toLowerCase());
  if (at < 0) return undefined;
  const from = Math.max(0, Math.min(at - EXCERPT_CHARS / 3, whole.length - EXCERPT_CHARS));
  const start = Math.floor(from);
  const end = Math.min(whole.length, start + EXCERPT_CHARS);
  const head = start > 0 ? "… " : "";
  const tail = end < whole.length ? ` … (${whole.length} characters in all)` : "";
  return `${head}${whole.slice(start, end)}${tail}`;
}
