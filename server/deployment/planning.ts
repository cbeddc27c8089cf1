/** When a deployment runs (pure). */
import { createHash } from "node:crypto";
import { invalidField } from "../../kit/errors.ts";
import type { CronSchedule, DeploymentSpec } from "../../proto/gen/tendon/v1/deployment_pb.js";
import type { PlannedRun } from "../store/deployments.ts";
import { CronTimes } from "./cron-times.ts";

/** Runs start a little after their time, so that schedules which name the same minute do not all start at once. */
const MIN_LATE_MS = 5_000;
const MAX_LATE_MS = 9 * 60_000;
const MAX_SHARE_OF_INTERVAL = 0.15;

const UPCOMING = 5;

/** INVALID_FIELD for one that is none. */
export function timesOf({ expression, timeZone }: CronSchedule): CronTimes {
  const times = CronTimes.parse(expression, timeZone);
  if (times instanceof CronTimes) return times;
  throw invalidField(`spec.schedule.${times.field}`, times.problem);
}

/** The first run after this moment. */
export function planAfter(
  deploymentId: string,
  { schedule }: Pick<DeploymentSpec, "schedule">,
  afterMs: number,
): PlannedRun | undefined {
  if (schedule === undefined) return undefined;
  const times = timesOf(schedule);
  const at = times.next(afterMs);
  return at === undefined ? undefined : planOf(deploymentId, times, at);
}

export interface DueRun {
  readonly scheduledAt: Date;
  readonly next: PlannedRun | undefined;
}

/**
 * Of a deployment whose planned run is due: which of its times that is, and what comes next. When nobody was there for a
 * while, times have gone by: the newest is run, late, and those before it are left out.
 */
export function dueRun(
  deploymentId: string,
  { schedule }: Pick<DeploymentSpec, "schedule">,
  planned: PlannedRun,
  nowMs: number,
): DueRun {
  const firstMs = planned.scheduledAt.getTime();
  const times = keptTimes(schedule);
  if (times === undefined) return { scheduledAt: planned.scheduledAt, next: undefined };
  let atMs = times.last(firstMs, nowMs);
  if (atMs > firstMs && planOf(deploymentId, times, atMs).firesAt.getTime() > nowMs)
    atMs = times.last(firstMs, atMs - 1);
  const nextMs = times.next(atMs);
  return {
    scheduledAt: new Date(atMs),
    next: nextMs === undefined ? undefined : planOf(deploymentId, times, nextMs),
  };
}

/** The next times themselves, without the delay. */
export function upcomingRuns({ schedule }: Pick<DeploymentSpec, "schedule">, nowMs: number): Date[] {
  const times = keptTimes(schedule)?.upcoming(nowMs, UPCOMING) ?? [];
  return times.map((ms) => new Date(ms));
}

/** Undefined also for a zone that the runtime has forgotten since. */
function keptTimes(schedule: CronSchedule | undefined): CronTimes | undefined {
  if (schedule === undefined) return undefined;
  const times = CronTimes.parse(schedule.expression, schedule.timeZone);
  return times instanceof CronTimes ? times : undefined;
}

function planOf(deploymentId: string, times: CronTimes, atMs: number): PlannedRun {
  const scheduledAt = new Date(atMs);
  const intervalMs = (times.next(atMs) ?? Number.POSITIVE_INFINITY) - atMs;
  return { scheduledAt, firesAt: new Date(atMs + latenessMs(deploymentId, atMs, intervalMs)) };
}

/** The same whoever asks: it follows from the deployment and the time alone. */
export function latenessMs(deploymentId: string, atMs: number, intervalMs: number): number {
  const most = Math.max(MIN_LATE_MS, Math.min(MAX_LATE_MS, intervalMs * MAX_SHARE_OF_INTERVAL));
  const digest = createHash("sha256").update(`${deploymentId} ${atMs}`).digest();
  return Math.round(MIN_LATE_MS + (digest.readUInt32BE(0) / 2 ** 32) * (most - MIN_LATE_MS));
}
