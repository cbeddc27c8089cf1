/**
 * Which entries a page of a log has (pure). An entry is an event, or what is told of the primary thread before one
 * (thread-status.ts). Each has a key, by which pages go on: twice the position of the event that it is, or stands directly
 * before, and one less for what stands before it.
 */
import type { Event } from "../../../../proto/gen/tendon/v1/event_pb.js";
import { toldType } from "./event-json.ts";
import { IDLE, isOwn, type ToldLog, tellsOfPrimary, threadStatusType, USAGE } from "./thread-status.ts";

export interface Entry {
  readonly event: Event;
  readonly key: bigint;
  /** What is told is how a thread stands. */
  readonly isThreadStatus: boolean;
  readonly type: string;
}

/** Neighbours of a slice, where it matters which they are. */
export interface Neighbours {
  /** Directly before the first one there is a usage. */
  readonly usageBefore: boolean;
  /** Directly after the last one. */
  readonly after: Event | undefined;
}

/** What is asked for to know the neighbours of a slice in log order: a usage and the idle event after it belong together. */
export function asksBefore(events: readonly Event[]): boolean {
  return events[0] !== undefined && isOwn(events[0], IDLE);
}

export function asksAfter(events: readonly Event[]): boolean {
  const last = events.at(-1);
  return last !== undefined && isOwn(last, USAGE);
}

/** `events` in log order, and so the entries. */
export function entriesOf(
  events: readonly Event[],
  log: Pick<ToldLog, "isThread">,
  { usageBefore, after }: Neighbours,
): Entry[] {
  const all = after === undefined ? events : [...events, after];
  const entries = all.flatMap((event, at): Entry[] => {
    const before = all[at - 1];
    const followsUsage =
      isOwn(event, IDLE) && (at === 0 ? usageBefore : before !== undefined && isBefore(before, event));
    const key = event.position * 2n;
    const isRenamed = log.isThread && event.threadId === "" && event.type.startsWith("session.status_");
    const type = isRenamed ? threadStatusType(event.type) : toldType(event);
    const own = { event, key, isThreadStatus: isRenamed, type };
    if (!tellsOfPrimary(event, log)) return [own];
    const anchor = followsUsage ? key - 2n : key;
    const status = { event, key: anchor - 1n, isThreadStatus: true, type: threadStatusType(event.type) };
    return [status, own];
  });
  const [from, to] = [events[0]?.position ?? 0n, events.at(-1)?.position ?? 0n];
  // What stands before another page's event is that page's.
  const isHere = ({ key }: Entry) => key >= from * 2n - 1n && key <= to * 2n;
  return entries.filter(isHere).sort((a, b) => (a.key < b.key ? -1 : 1));
}

function isBefore(usage: Event, idle: Event): boolean {
  return isOwn(usage, USAGE) && usage.position + 1n === idle.position;
}

/** Where a page ends that is cut after `last`, in log order or against it. `next` is what comes then, if that is known. */
export function cursorAfter(last: Entry, next: Entry | undefined, isDescending: boolean): bigint {
  if (!isDescending) return last.key;
  // What stands before an event follows from it: it is read once more.
  const isOdd = last.key % 2n === 1n;
  return isOdd || next?.key === last.key - 1n ? last.key : last.key - 1n;
}
