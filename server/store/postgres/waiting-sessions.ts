/**
 * Which sessions wait for a brain. All of it is asked of indexes that hold sessions with work alone, so what rests costs
 * nothing; and by workspace, so that the backlog of one is not looked through for the others.
 */
import {
  BARREN_DEATHS_BEFORE_ALONE,
  type LeaseStore,
  SILENT_DEATHS_BEFORE_ALONE,
  type WaitingSession,
} from "../leases.ts";
import type { Pool } from "./pool.ts";

export const HAS_WORK = "work_position > rested_position and archived_at is null";
export const WAITS = `${HAS_WORK} and (not_before is null or not_before <= clock_timestamp())
  and (lease_id is null or lease_expires_at <= clock_timestamp())`;
const COLUMNS = "session_id, workspace_id, silent_deaths, barren_deaths, loop";
/** Sessions of the workspace `w` that may run at a time; 0 means any number. */
const RUNNING_LIMIT = "coalesce((w.limits::json ->> 'runningSessions')::integer, 0)";
/** As in the index over them. */
const HAS_DEATHS = "silent_deaths + barren_deaths > 0";

interface WaitingRow {
  session_id: string;
  workspace_id: string;
  silent_deaths: number;
  barren_deaths: number;
  loop: string;
}

const nextSpace = (after: string) =>
  `(select workspace_id from sessions where ${HAS_WORK} ${after} order by workspace_id limit 1)`;

/** A session that may not share a process any more (E4). */
const IS_SUSPECT = `(silent_deaths >= ${SILENT_DEATHS_BEFORE_ALONE} or barren_deaths >= ${BARREN_DEATHS_BEFORE_ALONE})`;

/**
 * A workspace's limit of running sessions is the last turn that it gets.
 *
 * The workspaces with work are found one after the other, each by one look into the index. Then each takes its turns: its
 * oldest session's turn is the number of leases it holds, the next one's is one more.
 */
const FAIR_QUERY = `with recursive spaces (workspace_id) as (
    ${nextSpace("")} union all
    select ${nextSpace("and sessions.workspace_id > spaces.workspace_id")} from spaces where spaces.workspace_id is not null
  )
  select waiting.* from spaces join workspaces w using (workspace_id) cross join lateral (
    select ${COLUMNS}, work_since, held + row_number() over (order by work_since) as turn
    from (select count(*) as held from sessions h
        where h.workspace_id = spaces.workspace_id and h.lease_id is not null and h.lease_expires_at > clock_timestamp()) leases
      cross join (
        select ${COLUMNS}, work_since from sessions s where s.workspace_id = spaces.workspace_id and ${WAITS}
          and not ${IS_SUSPECT} and exists (select from unnest($2::text[], $3::text[]) as room (loop, workspace_id)
            where room.loop = s.loop and room.workspace_id in ('', s.workspace_id))
        order by work_since limit $1
      ) oldest
  ) waiting where ${RUNNING_LIMIT} = 0 or turn <= ${RUNNING_LIMIT} order by turn, work_since limit $1`;

export function waitingSessions(pool: Pool): Pick<LeaseStore, "findWork" | "findSuspects" | "findWaiting"> {
  return {
    async findWork({ limit, rooms }) {
      const { rows } = await pool.query<WaitingRow>(FAIR_QUERY, [
        limit,
        rooms.map(({ loop }) => loop),
        rooms.map(({ workspaceId }) => workspaceId ?? ""),
      ]);
      return rows.map(toWaiting);
    },
    async findSuspects(limit) {
      const { rows } = await pool.query<WaitingRow>(
        `select ${COLUMNS} from sessions where ${HAS_DEATHS} and ${IS_SUSPECT} and ${WAITS} order by work_since limit $1`,
        [limit],
      );
      return rows.map(toWaiting);
    },
    async findWaiting(sessionId) {
      const { rows } = await pool.query<WaitingRow & { limited: boolean }>(
        `select ${COLUMNS}, (select ${RUNNING_LIMIT} > 0 from workspaces w where w.workspace_id = sessions.workspace_id) as limited
         from sessions where session_id = $1 and ${WAITS}`,
        [sessionId],
      );
      const row = rows[0];
      return row && { ...toWaiting(row), isLimited: row.limited };
    },
  };
}

function toWaiting(row: WaitingRow): WaitingSession {
  return {
    sessionId: row.session_id,
    workspaceId: row.workspace_id,
    loop: row.loop,
    silentDeaths: row.silent_deaths,
    barrenDeaths: row.barren_deaths,
  };
}
