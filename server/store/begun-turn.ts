/** Whether a session that rests has been told something that a brain begins to work on: it runs from then on, not only once one has come (pure). */
import { ANSWER_FIELDS } from "./event-facts.ts";

const IDLE = "session.status_idle";
const INTERRUPT = "user.interrupt";
const CONFIRMATION = "user.tool_confirmation";
/** What a turn begins with. */
const BEGINS: ReadonlySet<string> = new Set(["user.message", "user.define_outcome"]);
const ANSWERS = ["user.tool_result", "user.custom_tool_result", CONFIRMATION];

/** What is to be read of a log. */
export const TURN_EVENTS: readonly string[] = [IDLE, ...BEGINS, INTERRUPT, ...ANSWERS];
/** As many of the newest of these, which goes far beyond the calls that a turn can wait for. */
export const MOST_TURN_EVENTS = 200;

export interface TurnEvent {
  readonly type: string;
  /** Empty where it was left out: an answer that is known by its size alone counts as none. */
  readonly payload: string;
}

/**
 * For a session that says `idle`, has work, and does not wait for another budget. `newestFirst` are the newest of its
 * `TURN_EVENTS`. What is said to one that `waitsForAnswers` begins nothing until it has all of them, or is interrupted.
 */
export function hasTurnBegun(newestFirst: readonly TurnEvent[], waitsForAnswers: boolean): boolean {
  const at = newestFirst.findIndex(({ type }) => type === IDLE);
  const said = at === -1 ? newestFirst : newestFirst.slice(0, at);
  if (!waitsForAnswers) return said.some(({ type }) => BEGINS.has(type));
  const answered = new Set(said.map(answeredBy));
  const asked = at === -1 ? [] : askedBy(newestFirst[at]!);
  return (asked.length > 0 && asked.every((id) => answered.has(id))) || isToldToLeave(said);
}

/** An interrupt lets go of the calls, and what is said after it is next; so is what waited before, unless it is to wait on. */
function isToldToLeave(newestFirst: readonly TurnEvent[]): boolean {
  const at = newestFirst.findIndex(({ type }) => type === INTERRUPT);
  if (at === -1) return false;
  const keepsQueued = fieldsOf(newestFirst[at]!).keeps_queued === true;
  return newestFirst.slice(0, keepsQueued ? at : undefined).some(({ type }) => BEGINS.has(type));
}

function answeredBy(event: TurnEvent): unknown {
  const field = event.type === CONFIRMATION ? "tool_use_id" : ANSWER_FIELDS[event.type];
  return field === undefined ? undefined : fieldsOf(event)[field];
}

function askedBy(idle: TurnEvent): readonly unknown[] {
  const reason = fieldsOf(idle).stop_reason as { event_ids?: unknown } | undefined;
  return Array.isArray(reason?.event_ids) ? reason.event_ids : [];
}

function fieldsOf({ payload }: TurnEvent): Readonly<Record<string, unknown>> {
  return JSON.parse(payload || "{}") as Record<string, unknown>;
}
