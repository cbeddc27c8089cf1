/**
 * A session's log as steps in time: which part worked when, how long, and when nobody did (pure). Everything is folded from
 * events, so it is there whether or not spans were ever recorded. Names and codes are taken from payloads, never texts.
 */
import type { FailureOrigin, Part } from "../../kit/errors.ts";
import { TimelineFold } from "./timeline-fold.ts";

export interface LogEvent {
  readonly position: number;
  readonly id: string;
  readonly type: string;
  readonly atMs: number;
  /** JSON text; empty when it was left out for its size. */
  readonly payload: string;
}

export interface Step {
  readonly part: Part;
  /** In a few words, without anything that was said. */
  readonly what: string;
  readonly startMs: number;
  /** Undefined: it goes on. */
  readonly endMs: number | undefined;
  /** The events that begin and end it; equal for what has no length. */
  readonly from: number;
  readonly to: number | undefined;
  /** 0 before the first turn. */
  readonly turn: number;
  readonly failure?: FailureOrigin | undefined;
}

/** Nobody did anything, though the session was not at rest. */
export interface Gap {
  readonly startMs: number;
  readonly endMs: number;
  /** The event that ended it, and who wrote that: whoever nothing was heard of. */
  readonly to: number;
  readonly part: Part;
  readonly turn: number;
}

export interface Turn {
  readonly turn: number;
  /** Empty for turns of before traces. */
  readonly traceId: string;
  readonly startMs: number;
  readonly endMs: number | undefined;
  /** As the idle event says; empty while it goes on. */
  readonly stopReason: string;
}

export interface Timeline {
  readonly startMs: number;
  readonly endMs: number;
  readonly events: number;
  readonly turns: readonly Turn[];
  /** By their beginning. */
  readonly steps: readonly Step[];
  readonly gaps: readonly Gap[];
}

/** Shorter ones are what a step of the platform takes. */
export const DEFAULT_MIN_GAP_MS = 100;

export function timelineOf(events: readonly LogEvent[], minGapMs = DEFAULT_MIN_GAP_MS): Timeline {
  const fold = new TimelineFold();
  for (const event of events) fold.apply(event);
  const { turns, steps } = fold.end();
  const startMs = events[0]?.atMs ?? 0;
  const endMs = events.at(-1)?.atMs ?? 0;
  const sorted = steps.toSorted((a, b) => a.startMs - b.startMs || a.from - b.from);
  return {
    startMs,
    endMs,
    events: events.length,
    turns,
    steps: sorted,
    gaps: gapsOf(events, sorted, minGapMs),
  };
}

/** Between neighbouring events that no step spans. */
function gapsOf(events: readonly LogEvent[], steps: readonly Step[], minGapMs: number): Gap[] {
  const gaps: Gap[] = [];
  let coveredUntil = Number.NEGATIVE_INFINITY;
  let next = 0;
  let turn = 0;
  for (const [index, event] of events.entries()) {
    const before = events[index - 1];
    // All steps that begin before this event.
    for (; next < steps.length && steps[next]!.startMs < event.atMs; next++) {
      const { endMs = Number.POSITIVE_INFINITY } = steps[next]!;
      coveredUntil = Math.max(coveredUntil, endMs);
      turn = steps[next]!.turn;
    }
    if (before === undefined) continue;
    const startMs = Math.max(before.atMs, coveredUntil);
    if (event.atMs - startMs >= minGapMs) {
      gaps.push({ startMs, endMs: event.atMs, to: event.position, part: writerOf(event.type), turn });
    }
  }
  return gaps;
}

function writerOf(type: string): Part {
  if (/^(hand|agent\.tool_result|agent\.mcp_tool_result)\b/.test(type)) return "hand_agent";
  if (/^(brain|span|agent|session\.(status_running|status_idle|usage|error))\b/.test(type)) return "harness";
  return /^session\b/.test(type) ? "server" : "client";
}

/** How long each part worked, counted once where its steps run side by side; longest first. */
export function timeByPart(steps: readonly Step[], endMs: number): [Part, number][] {
  const parts = new Map<Part, number>();
  const until = new Map<Part, number>();
  for (const { part, startMs, endMs: stepEnd = endMs } of steps) {
    const from = Math.max(startMs, until.get(part) ?? startMs);
    parts.set(part, (parts.get(part) ?? 0) + Math.max(0, stepEnd - from));
    until.set(part, Math.max(stepEnd, until.get(part) ?? stepEnd));
  }
  return [...parts].filter(([, ms]) => ms > 0).toSorted(([, a], [, b]) => b - a);
}
