/** `tendon session trace`: where a session's time went, and where it failed, drawn from its log alone. */
import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { Command } from "commander";
import { CALL_WITHIN, type CommandContext, onAction } from "../command.ts";
import type { Api } from "../connect.ts";
import { printable } from "../table.ts";
import { drawTimeline } from "../trace/draw-timeline.ts";
import { DEFAULT_MIN_GAP_MS, type LogEvent, type Timeline, timelineOf } from "../trace/timeline.ts";
import { parseCount, parsePosition } from "../words.ts";

interface TraceOptions {
  after?: bigint;
  minGap?: number;
  payloads?: boolean;
}

const PAGE_EVENTS = 1_000;
const MAX_EVENTS = 100_000;

export function addSessionTrace(session: Command): void {
  const command = session
    .command("trace <session>")
    .description(
      "draw a session's timeline part by part: what took how long, what failed where, when nothing happened",
    )
    .option("--after <position>", "only events after it", parsePosition(0))
    .option(
      "--min-gap <ms>",
      `shortest time in which nothing happened that is shown; left out: ${DEFAULT_MIN_GAP_MS}`,
      parseCount(1, 86_400_000),
    )
    .option("--payloads", "also what was said: the events' payloads")
    .addHelpText(
      "after",
      `
It needs nothing but the log, and shows names, times and reason codes alone unless --payloads is given.

Examples:
  tendon session trace sesn_01…
  tendon session trace sesn_01… --json | jq '.steps[] | select(.failure)'`,
    );
  onAction<TraceOptions>(command, trace);
}

async function trace({ options, args, api, output }: CommandContext<TraceOptions>): Promise<void> {
  const sessionId = String(args[0]);
  const { events, isCut } = await readLog(api, sessionId, options.after ?? 0n);
  const timeline = timelineOf(events, options.minGap);
  const payloads = options.payloads ? payloadsOf(events) : undefined;
  if (isCut)
    output.note(`only ${MAX_EVENTS} events are shown; go on with --after ${events.at(-1)?.position}`);
  output.value(timelineJson(sessionId, timeline, payloads), () =>
    events.length === 0
      ? "there are no events"
      : drawTimeline(sessionId, timeline, payloads === undefined ? {} : { payloads }),
  );
}

async function readLog(api: Api, sessionId: string, after: bigint) {
  const events: LogEvent[] = [];
  let afterPosition = after;
  for (;;) {
    const request = { sessionId, afterPosition, limit: PAGE_EVENTS };
    const page = await api.sessions.getEvents(request, CALL_WITHIN);
    for (const { position, id, type, threadId, createdAt, payload } of page.events) {
      afterPosition = position;
      if (threadId !== "") continue;
      const atMs = createdAt === undefined ? 0 : timestampMs(createdAt);
      events.push({ position: Number(position), id, type, atMs, payload });
    }
    if (!page.hasMore || page.events.length === 0) return { events, isCut: false };
    if (events.length >= MAX_EVENTS) return { events, isCut: true };
  }
}

function payloadsOf(events: readonly LogEvent[]): Map<number, string> {
  return new Map(events.map(({ position, type, payload }) => [position, `${type} ${printable(payload)}`]));
}

/** For programs: times are milliseconds since 1970. */
function timelineJson(
  sessionId: string,
  timeline: Timeline,
  payloads: ReadonlyMap<number, string> | undefined,
) {
  return {
    session_id: sessionId,
    events: timeline.events,
    start_ms: timeline.startMs,
    end_ms: timeline.endMs,
    turns: timeline.turns.map(({ turn, traceId, startMs, endMs, stopReason }) => ({
      turn,
      trace_id: traceId,
      start_ms: startMs,
      end_ms: endMs ?? null,
      stop_reason: stopReason,
    })),
    steps: timeline.steps.map(({ turn, part, what, startMs, endMs, from, to, failure }) => ({
      turn,
      part,
      what,
      start_ms: startMs,
      end_ms: endMs ?? null,
      from_position: from,
      to_position: to ?? null,
      ...(failure && { failure: { part: failure.part, reason: failure.reason } }),
    })),
    gaps: timeline.gaps.map(({ turn, part, startMs, endMs, to }) => ({
      turn,
      until_part: part,
      start_ms: startMs,
      end_ms: endMs,
      to_position: to,
    })),
    ...(payloads && { payloads: Object.fromEntries(payloads) }),
  };
}
