/** Leases live in the session's row: the row lock that an append takes is also what an epoch is checked under (E1). */
import { notFound, TendonError } from "../../../kit/errors.ts";
import type { AcquiredLease, LeaseStore } from "../leases.ts";
import { BEATS_WITHIN_MS } from "../replicas.ts";
import type { Pool } from "./pool.ts";
import { HAS_WORK, WAITS, waitingSessions } from "./waiting-sessions.ts";

const LEASE_COLUMNS =
  "session_id, workspace_id, lease_id, lease_epoch, lease_expires_at, silent_deaths, barren_deaths, lease_head";
/** When it ended stays: what is given to another brain at once was not abandoned in between (E3). */
const END_LEASE =
  "lease_id = null, lease_harness_id = null, lease_replica_id = null, lease_expires_at = clock_timestamp()";

/** Of a lease that ended with its server it is not known whether the holder was told of it: that is no death (E4). */
const SERVER_LIVES = `exists (select from replicas r where r.replica_id = sessions.lease_replica_id
  and r.seen_at > clock_timestamp() - interval '${BEATS_WITHIN_MS} milliseconds')`;

/** What a brain appends before it has got anywhere: these alone do not say that its session can be run. */
const PROGRESS = [
  "agent.message",
  "agent.thinking",
  "agent.tool_use",
  "agent.custom_tool_use",
  "agent.mcp_tool_use",
  "session.error",
  "session.status_idle",
];
const GOT_ANYWHERE = `exists (select from events e where e.session_id = sessions.session_id
  and e.type in (${PROGRESS.map((type) => `'${type}'`).join(", ")}) and e.position > lease_head)`;
const BARREN_DEATHS = `case when ${GOT_ANYWHERE} then 0 else barren_deaths + 1 end`;

interface LeaseRow {
  session_id: string;
  workspace_id: string;
  lease_id: string;
  lease_epoch: number;
  lease_expires_at: Date;
  silent_deaths: number;
  barren_deaths: number;
  lease_head: number;
}

export function createLeaseStore(pool: Pool): LeaseStore {
  return {
    ...waitingSessions(pool),
    async acquire({ sessionId, leaseId, harnessId, replicaId, ttlMs }) {
      // A lease that is still named here has expired: its holder is gone or hangs, and nobody has counted that yet.
      const { rows } = await pool.query<LeaseRow>(
        `update sessions set
           silent_deaths = case when lease_id is null then silent_deaths when head <> lease_head then 0
             when ${SERVER_LIVES} then silent_deaths + 1 else silent_deaths end,
           barren_deaths = case when lease_id is null or not ${SERVER_LIVES} then barren_deaths else ${BARREN_DEATHS} end,
           lease_id = $2, lease_epoch = lease_epoch + 1, lease_harness_id = $3, lease_replica_id = $4,
           lease_expires_at = clock_timestamp() + $5 * interval '1 millisecond', lease_head = head, not_before = null
         where session_id = (select session_id from sessions where session_id = $1 and ${WAITS} for no key update skip locked)
           and ${WAITS} returning ${LEASE_COLUMNS}`,
        [sessionId, leaseId, harnessId, replicaId, ttlMs],
      );
      return rows[0] && toLease(rows[0]);
    },
    async renew({ leaseIds, harnessId, ttlMs }) {
      // Whoever holds a row for long must not take the other leases along: what is locked now is renewed the next time.
      const { rows } = await pool.query<{ lease_id: string; lease_expires_at: Date }>(
        `with mine as (
           select session_id, lease_id, lease_expires_at from sessions
           where lease_id = any($1) and lease_harness_id = $2 and lease_expires_at > clock_timestamp()
         ), renewed as (
           update sessions set lease_expires_at = clock_timestamp() + $3 * interval '1 millisecond'
           where session_id in (
             select session_id from sessions where session_id in (select session_id from mine)
               and lease_id = any($1) and lease_harness_id = $2
             order by session_id for no key update skip locked
           ) returning lease_id, lease_expires_at
         )
         select lease_id, lease_expires_at from renewed
         union all
         select lease_id, lease_expires_at from mine where lease_id not in (select lease_id from renewed)`,
        [leaseIds, harnessId, ttlMs],
      );
      const ends = rows.map((row) => row.lease_expires_at.getTime());
      return {
        leaseIds: rows.map((row) => row.lease_id),
        expiresAt: new Date(Math.min(...ends, pool.clock.nowMs() + ttlMs)),
      };
    },
    async reattach({ sessionId, leaseId, epoch, harnessId, replicaId, ttlMs }) {
      const { rows } = await pool.query<LeaseRow>(
        `update sessions set lease_replica_id = $5, lease_expires_at = clock_timestamp() + $6 * interval '1 millisecond'
         where session_id = $1 and lease_id = $2 and lease_epoch = $3 and lease_harness_id = $4
           and lease_expires_at > clock_timestamp() returning ${LEASE_COLUMNS}`,
        [sessionId, leaseId, epoch, harnessId, replicaId, ttlMs],
      );
      return rows[0] && toLease(rows[0]);
    },
    ...endings(pool),
  };
}

function endings(pool: Pool): Pick<LeaseStore, "release" | "free" | "withdraw" | "wake" | "findAbandoned"> {
  return {
    async release({ leaseId, restedPosition, retryAfterMs, answersDueAfterMs }) {
      const { rows } = await pool.query<{ has_work: boolean }>(
        `update sessions set ${END_LEASE}, silent_deaths = 0, barren_deaths = 0,
           rested_position = greatest(rested_position, coalesce($2, rested_position)),
           not_before = case when $3::bigint is null then null else clock_timestamp() + $3 * interval '1 millisecond' end,
           answers_due_at = clock_timestamp() + $4::bigint * interval '1 millisecond'
         where lease_id = $1 returning ${HAS_WORK} as has_work`,
        [leaseId, restedPosition ?? null, retryAfterMs ?? null, answersDueAfterMs ?? null],
      );
      return { released: rows.length > 0, hasWork: rows[0]?.has_work ?? false };
    },
    async free({ leaseId, replicaId, crashed }) {
      const { rows } = await pool.query<{ session_id: string }>(
        `update sessions set ${END_LEASE},
           silent_deaths = case when not $3 then silent_deaths when head = lease_head then silent_deaths + 1 else 0 end,
           barren_deaths = case when not $3 then barren_deaths else ${BARREN_DEATHS} end
         where lease_id = $1 and lease_replica_id = $2 returning session_id`,
        [leaseId, replicaId, crashed],
      );
      return rows[0] && { sessionId: rows[0].session_id };
    },
    async withdraw(sessionId) {
      const { rows } = await pool.query<{ lease_id: string }>(
        `with held as (select session_id, lease_id from sessions where session_id = $1 and lease_id is not null for update)
         update sessions s set ${END_LEASE}, lease_epoch = lease_epoch + 1 from held where s.session_id = held.session_id
         returning held.lease_id`,
        [sessionId],
      );
      return rows[0] && { leaseId: rows[0].lease_id };
    },
    async wake(sessionId) {
      const { rows } = await pool.query<{ archived: boolean; has_work: boolean }>(
        `update sessions set not_before = null where session_id = $1
         returning archived_at is not null as archived, ${HAS_WORK} as has_work`,
        [sessionId],
      );
      const row = rows[0];
      if (row === undefined) throw notFound("session", sessionId);
      if (row.archived) throw new TendonError("SESSION_ARCHIVED", `session "${sessionId}" is archived`);
      return { hasWork: row.has_work };
    },
    async findAbandoned({ graceMs, limit }) {
      const { rows } = await pool.query<{ session_id: string; head: number }>(
        `select session_id, head from sessions where status = 'running' and archived_at is null
           and coalesce(lease_expires_at, updated_at) < clock_timestamp() - $1 * interval '1 millisecond' limit $2`,
        [graceMs, limit],
      );
      return rows.map(({ session_id: sessionId, head }) => ({ sessionId, head }));
    },
  };
}

function toLease(row: LeaseRow): AcquiredLease {
  return {
    sessionId: row.session_id,
    workspaceId: row.workspace_id,
    leaseId: row.lease_id,
    epoch: BigInt(row.lease_epoch),
    expiresAt: row.lease_expires_at,
    silentDeaths: row.silent_deaths,
    barrenDeaths: row.barren_deaths,
    head: BigInt(row.lease_head),
  };
}
