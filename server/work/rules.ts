/** Decisions about items of work, from an item as it stands (pure). */
import { TendonError } from "../../kit/errors.ts";
import type { Principal } from "../ports/principal.ts";
import type { Beat, CallEnding, LockedWork, WorkCaller, WorkName } from "../store/work.ts";

/** What a holder expects before its first heartbeat. */
export const NO_HEARTBEAT = "NO_HEARTBEAT";

const MIN_TTL_MS = 1_000;

/** As whom a principal speaks of items. */
export function callerOf(principal: Principal): WorkCaller {
  if (principal.kind === "worker") return { kind: "key", environmentKeyId: principal.keyId };
  if (principal.kind === "work_item")
    return { kind: "claim", workId: principal.workId, claim: principal.claim };
  return { kind: "operator" };
}

/** It was given the item, and nobody else was since, or the item is not anybody's yet. */
function isHolder({ callerClaim, fencedClaim, holderClaim }: LockedWork): boolean {
  if (callerClaim === undefined || callerClaim <= fencedClaim) return false;
  return holderClaim === undefined || holderClaim === callerClaim;
}

/** Whether the item is to be accepted; false when it was a moment ago. WORK_NOT_QUEUED, WORK_NOT_HELD. */
export function acceptance(work: LockedWork, caller: WorkName["caller"]): boolean {
  const { state, holderClaim, callerClaim, fencedClaim } = work;
  // A worker that did not hear the answer asks again. If two do, the first heartbeat decides.
  if (state === "starting" && holderClaim === undefined) return false;
  if (state !== "queued") {
    throw new TendonError("WORK_NOT_QUEUED", `work item "${work.workId}" is ${state}`, { state });
  }
  if (caller.kind === "claim" && (callerClaim ?? 0) <= fencedClaim) throw notHeld(work);
  return true;
}

export interface HeartbeatWish {
  readonly expected: string;
  /** 0: the server's. */
  readonly ttlMs: number;
}

/** What a heartbeat does. HEARTBEAT_PRECONDITION_FAILED when the item is not the caller's, or its value is not the newest. */
export function beatOf(work: LockedWork, wish: HeartbeatWish, serverTtlMs: number): Beat {
  const { state, callerClaim, lastHeartbeat, previousHeartbeat } = work;
  // Who stopped it does not matter any more: nothing can be kept.
  if (state === "stopped") return undefined;
  if (state === "queued" || callerClaim === undefined || !isHolder(work)) throw heartbeatRefused(work);
  if (state === "stopping") return undefined;
  const ttlMs = wish.ttlMs === 0 ? serverTtlMs : Math.max(MIN_TTL_MS, Math.min(wish.ttlMs, serverTtlMs));
  if (wish.expected === (lastHeartbeat ?? NO_HEARTBEAT)) return { kind: "new", claim: callerClaim, ttlMs };
  // Its answer was lost: the same holder says the same again.
  const isRepeat = lastHeartbeat !== undefined && wish.expected === (previousHeartbeat ?? NO_HEARTBEAT);
  if (isRepeat) return { kind: "repeated", ttlMs };
  throw heartbeatRefused(work);
}

function heartbeatRefused({ workId, state, lastHeartbeat, ttlMs }: LockedWork): TendonError {
  return new TendonError(
    "HEARTBEAT_PRECONDITION_FAILED",
    `expected_last_heartbeat: work item "${workId}" has another newest heartbeat, or another holder`,
    { work_id: workId, state, last_heartbeat: lastHeartbeat ?? "", ttl_ms: String(ttlMs) },
  );
}

/** How an item is to stop. WORK_STOPPED, WORK_NOT_HELD. */
export function stopOf(
  work: LockedWork,
  caller: WorkCaller,
  force: boolean,
): { kind: "stopping" | "stopped"; ending: CallEnding } {
  const { workId, state, callerClaim } = work;
  if (state === "stopped")
    throw new TendonError("WORK_STOPPED", `work item "${workId}" is stopped already`, { work_id: workId });
  // A worker's key that was never given the item is an operator's.
  const isWorker = caller.kind !== "operator" && callerClaim !== undefined;
  if (isWorker && (state === "queued" || !isHolder(work))) throw notHeld(work);
  // Nobody has to be told first: there is no worker, or it is the worker who says so.
  const isAtOnce = force || state === "queued" || caller.kind === "claim";
  return { kind: isAtOnce ? "stopped" : "stopping", ending: state === "queued" ? NOT_STARTED : STOPPED };
}

function notHeld({ workId }: LockedWork): TendonError {
  return new TendonError("WORK_NOT_HELD", `work item "${workId}" is not yours any more`, { work_id: workId });
}

const CHECK_FIRST =
  "It may have run in part, in whole, or not at all, and it will not be run again by itself. Check what it did before you repeat it.";

/** Its worker was not heard from for the time of its lease. */
export const LOST: CallEnding = {
  outcome: "unknown",
  reason: "WORKER_LOST",
  text: `It is not known what became of this call: the worker that had it was not heard from any more. ${CHECK_FIRST}`,
};

const STOPPED: CallEnding = {
  outcome: "unknown",
  reason: "WORKER_STOPPED",
  text: `It is not known what became of this call: the worker that had it stopped without an answer. ${CHECK_FIRST}`,
};

const NOT_STARTED: CallEnding = {
  outcome: "not_started",
  reason: "WORK_STOPPED",
  text: "The call did not run: it waited for a worker, and an operator took it out of the queue.",
};

export function overdueEnding(hours: number): CallEnding {
  return {
    outcome: "unknown",
    reason: "NO_WORKER",
    text: `No worker has answered this call within ${hours} hours. Somebody has to start a worker of the environment that knows the tool. ${CHECK_FIRST}`,
  };
}
