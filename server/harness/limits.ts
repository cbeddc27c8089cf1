/** The numbers of work distribution, and how they hang together. */
import assert from "node:assert/strict";

/** A lease ends this long after its last renewal. */
export const DEFAULT_LEASE_TTL_MS = 30_000;
/** A harness renews this often at least: two renewals may be lost. */
export const RENEWALS_PER_TTL = 3;
/** How long a harness whose stream broke may take to attach again before its sessions are given to others (E2). */
export const REATTACH_GRACE_MS = 300;
/** A running session without a live lease is said to be rescheduled after this (E3). */
export const ABANDONED_GRACE_MS = 5_000;
/** The bound for a lost hint: how often the database is asked for work, at least. */
export const POLL_EVERY_MS = 1_000;
export const HEARTBEAT_EVERY_MS = 5_000;
/** Silence after which a connection counts as dead. */
export const HEARTBEAT_TIMEOUT_MS = 15_000;
/** Messages that may wait for one harness: an assignment and its log for each session, and change. */
export const OUTBOX_MESSAGES = 20_000;
/** Most bytes of events in one message. */
export const LOG_MESSAGE_BYTES = 1024 * 1024;
/** Sessions taken from the waiting list in one round. */
export const WORK_BATCH = 100;
/** Assignments that are being prepared at a time. */
export const PARALLEL_ASSIGNMENTS = 16;
/** Sessions that may run only alone which are looked at in one round. */
export const SUSPECT_BATCH = 20;
/**
 * A harness that let a lease run out may hang: so long others, at whichever server, may take the session before it, and
 * it gets it again only if it was heard from since.
 */
export const OTHERS_FIRST_MS = 3_000;
export const PROTOCOL_VERSION = 1;

assert(HEARTBEAT_TIMEOUT_MS >= 3 * HEARTBEAT_EVERY_MS, "two heartbeats may be lost");
assert(HEARTBEAT_TIMEOUT_MS < 30_000, "half-open connections are found within 30 s (H3)");
assert(REATTACH_GRACE_MS < DEFAULT_LEASE_TTL_MS, "a broken stream frees sooner than a hang");
