/** A timeline as text: a line a step, bars to the scale of their turn, and what is no step: rests and gaps. */
import type { FailureOrigin } from "../../kit/errors.ts";
import type { Gap, Step, Timeline, Turn } from "./timeline.ts";
import { timeByPart } from "./timeline.ts";

export interface DrawOptions {
  /** Texts of events, by position, to be shown below the steps that they begin or end. */
  readonly payloads?: ReadonlyMap<number, string>;
}

const BAR_CHARS = 24;
const WHAT_CHARS = 28;
const MAX_PAYLOAD_CHARS = 2_000;

export function drawTimeline(sessionId: string, timeline: Timeline, options: DrawOptions = {}): string {
  const { startMs, endMs, events, turns } = timeline;
  const head = `${sessionId}: ${count(turns.length, "turn")}, ${count(events, "event")} in ${duration(endMs - startMs)}`;
  const numbers = [...new Set([0, ...turns.map(({ turn }) => turn)])];
  const parts = numbers.map((turn) => drawTurn(timeline, turn, options)).filter((lines) => lines.length > 0);
  return [head, ...parts.flatMap((lines) => ["", ...lines]), "", ...summary(timeline)].join("\n");
}

function drawTurn(timeline: Timeline, number: number, options: DrawOptions): string[] {
  const rows = [
    ...timeline.steps.filter(({ turn }) => turn === number).map((step) => ({ ...step, isGap: false })),
    ...timeline.gaps.filter(({ turn }) => turn === number).map((gap) => ({ ...gap, isGap: true })),
  ].toSorted((a, b) => a.startMs - b.startMs);
  if (rows.length === 0) return [];
  const turn = timeline.turns.find((one) => one.turn === number);
  const isRest = (row: (typeof rows)[number]) => "what" in row && row.what === "at rest";
  const busy = rows.filter((row) => !isRest(row));
  const fromMs = Math.min(...busy.map(({ startMs }) => startMs), timeline.endMs);
  const toMs = Math.max(...busy.map(({ endMs }) => endMs ?? timeline.endMs), fromMs + 1);
  const lines = rows.map((row) => {
    const at = duration(row.startMs - timeline.startMs).padStart(9);
    if (isRest(row)) {
      return row.endMs === undefined ? `${at}  at rest` : `${at}  at rest for ${tookText(row, timeline)}`;
    }
    const bar = barOf(row, fromMs, toMs, timeline.endMs);
    return row.isGap
      ? `${at} ${tookText(row, timeline).padStart(9)}  ${"".padEnd(10)} ${bar}  nothing, until the ${words((row as Gap).part)} goes on at #${row.to}`
      : stepLine(at, bar, row as unknown as Step, timeline, options);
  });
  return [turnHead(number, turn), ...lines];
}

function turnHead(number: number, turn: Turn | undefined): string {
  if (turn === undefined) return "before the first turn";
  const { traceId, startMs, endMs, stopReason } = turn;
  const trace = traceId === "" ? "" : `  trace ${traceId}`;
  const end =
    endMs === undefined ? "goes on" : `${duration(endMs - startMs)}, ${words(stopReason || "ended")}`;
  return `turn ${number}${trace}  ${end}`;
}

function stepLine(at: string, bar: string, step: Step, timeline: Timeline, options: DrawOptions): string {
  const { part, what, from, to, failure } = step;
  const took = tookText(step, timeline).padStart(9);
  const where = to === from ? `#${from}` : `#${from}–${to === undefined ? "" : `#${to}`}`;
  const line = `${at} ${took}  ${words(part).padEnd(10)} ${bar}  ${what.padEnd(WHAT_CHARS)} ${where}${failureText(failure)}`;
  const shown = [...new Set([from, to])].flatMap((position) => {
    const text = position === undefined ? undefined : options.payloads?.get(position);
    return text === undefined ? [] : [`          #${position} ${text.slice(0, MAX_PAYLOAD_CHARS)}`];
  });
  return [line.trimEnd(), ...shown].join("\n");
}

function failureText(failure: FailureOrigin | undefined): string {
  return failure === undefined ? "" : `  FAILED: ${words(failure.part)}, ${failure.reason}`;
}

function tookText(
  { startMs, endMs }: { startMs: number; endMs?: number | undefined },
  timeline: Timeline,
): string {
  if (endMs === undefined) return `${duration(timeline.endMs - startMs)}+`;
  return endMs === startMs ? "" : duration(endMs - startMs);
}

function barOf(
  { startMs, endMs, isGap }: { startMs: number; endMs?: number | undefined; isGap: boolean },
  fromMs: number,
  toMs: number,
  lastMs: number,
): string {
  const scale = (ms: number) => ((ms - fromMs) / (toMs - fromMs)) * BAR_CHARS;
  const from = Math.min(BAR_CHARS - 1, Math.max(0, Math.floor(scale(startMs))));
  const to = Math.min(BAR_CHARS, Math.max(from + 1, Math.round(scale(endMs ?? lastMs))));
  const mark = isGap ? "·" : endMs === startMs ? "|" : "█";
  return `${" ".repeat(from)}${mark.repeat(to - from)}`.padEnd(BAR_CHARS);
}

function summary({ steps, gaps, endMs }: Timeline): string[] {
  const times = timeByPart(steps, endMs).map(([part, ms]) => `${words(part)} ${duration(ms)}`);
  const nothing = gaps.reduce((sum, gap) => sum + gap.endMs - gap.startMs, 0);
  if (nothing > 0) times.push(`nothing ${duration(nothing)}`);
  const failures = new Map<string, { count: number; last: number }>();
  for (const { failure, to } of steps) {
    if (failure === undefined) continue;
    const name = `${words(failure.part)}, ${failure.reason}`;
    failures.set(name, { count: (failures.get(name)?.count ?? 0) + 1, last: to ?? 0 });
  }
  return [
    `time: ${times.join(", ")}`,
    failures.size === 0
      ? "no failures"
      : `failures: ${[...failures].map(([name, { count: n, last }]) => `${n}× ${name} (last at #${last})`).join("; ")}`,
  ];
}

function words(name: string): string {
  return name.replaceAll("_", " ");
}

function count(n: number, noun: string): string {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}

/** Three digits are enough to see which step was long. */
export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1_000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} m ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} m`;
}
