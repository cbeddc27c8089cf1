/** What a model asks of its session's log, read from its input. Pure. */
import type { Json } from "../event-payload.ts";

export interface HistoryQuery {
  /** One event; then only `fromChar` counts of the rest. */
  readonly position: number | undefined;
  readonly fromChar: number;
  /** Empty: all that a model may read. */
  readonly types: readonly string[];
  /** Empty: any. */
  readonly text: string;
  readonly after: number;
  /** 0: up to the end. */
  readonly before: number;
  readonly oldestFirst: boolean;
  readonly limit: number;
}

const FIELDS = ["position", "from_char", "types", "text", "before", "after", "oldest_first", "limit"];
const MAX_TYPES = 16;
const MAX_TEXT_CHARS = 200;
const MAX_LIMIT = 50;
const DEFAULT_LIMIT = 20;
const MAX_POSITION = 2 ** 50;

/** Types that clients make up are not for brains; spans tell of requests, not of the talk. */
export function isReadable(type: string): boolean {
  return /^(user|agent|system|hand|session)\./.test(type) && type !== "session.usage";
}

/** The query, or what is wrong with it. */
export function historyQuery(input: Json): HistoryQuery | string {
  const unknown = Object.keys(input).find((name) => !FIELDS.includes(name));
  if (unknown !== undefined) return `"${unknown}" is not a field; there are ${FIELDS.join(", ")}.`;
  const numbers: Record<string, number | undefined> = {};
  for (const [name, least, most] of [
    ["position", 1, MAX_POSITION],
    ["from_char", 0, MAX_POSITION],
    ["before", 1, MAX_POSITION],
    ["after", 0, MAX_POSITION],
    ["limit", 1, MAX_LIMIT],
  ] as const) {
    const value = input[name];
    if (value === undefined || value === null) continue;
    if (!Number.isInteger(value) || (value as number) < least || (value as number) > most) {
      return `"${name}" must be a whole number${most === MAX_LIMIT ? ` from ${least} to ${most}` : `, at least ${least}`}.`;
    }
    numbers[name] = value as number;
  }
  const types = input.types ?? [];
  if (!Array.isArray(types) || types.length > MAX_TYPES || types.some((type) => typeof type !== "string")) {
    return `"types" must be a list of at most ${MAX_TYPES} event types.`;
  }
  const unreadable = types.find((type: string) => !isReadable(type));
  if (unreadable !== undefined) {
    return `Events of type "${unreadable}" cannot be read here; those that begin with user., agent., system., hand. and session. can.`;
  }
  const text = input.text ?? "";
  if (typeof text !== "string" || text.length > MAX_TEXT_CHARS) {
    return `"text" must be a text of at most ${MAX_TEXT_CHARS} characters.`;
  }
  return {
    position: numbers.position,
    fromChar: numbers.from_char ?? 0,
    types,
    text,
    after: numbers.after ?? 0,
    before: numbers.before ?? 0,
    oldestFirst: input.oldest_first === true,
    limit: numbers.limit ?? DEFAULT_LIMIT,
  };
}
