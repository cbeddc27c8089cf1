/** What logs have shown a model of the world outside, in Postgres. */
import type { ShownTextStore } from "../shown-texts.ts";
import type { Pool } from "./pool.ts";

const PAGE_ROWS = 20;
const MAX_BYTES = 1024 * 1024;

/** Threads are nested eight deep at most. */
const PAGE_SQL = `with recursive chain as (
    select session_id, parent_session_id, 0 as depth from sessions where session_id = $1
    union all
    select p.session_id, p.parent_session_id, depth + 1
      from chain c join sessions p on p.session_id = c.parent_session_id where depth < 16)
  select e.session_id, e.position, e.type, e.payload, call.payload as call
    from chain c join events e on e.session_id = c.session_id
      left join events call on call.session_id = e.session_id and call.event_id = e.answers
    where e.type in ('user.message', 'user.define_outcome', 'user.custom_tool_result', 'agent.tool_result')
      and octet_length(e.payload) <= ${MAX_BYTES}
      and strpos(lower(e.payload), lower($2)) > 0
      and ($3::text is null or (e.session_id, e.position) < ($3, $4::bigint))
    order by e.session_id desc, e.position desc limit ${PAGE_ROWS}`;

interface Row {
  session_id: string;
  position: number;
  type: string;
  payload: string;
  call: string | null;
}

export function createShownTextStore(pool: Pool): ShownTextStore {
  return {
    async page({ sessionId, word, after }) {
      const { rows } = await pool.query<Row>(PAGE_SQL, [
        sessionId,
        word,
        after?.sessionId ?? null,
        after?.position ?? null,
      ]);
      return rows.map(({ session_id, position, type, payload, call }) => ({
        ...{ type, payload },
        call: call ?? undefined,
        cursor: { sessionId: session_id, position: Number(position) },
      }));
    },
  };
}
