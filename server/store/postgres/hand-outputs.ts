/** Which hands may have left output that nobody has taken in. */
import type { HandStore } from "../hands.ts";
import { type HandRow, prefixedHandColumns, toHand } from "./hands.ts";
import type { Pool } from "./pool.ts";

/** A use is seen with microseconds here and with milliseconds there. */
const SAME_USE = "interval '1 millisecond'";

export function outputs(pool: Pool): Pick<HandStore, "outputsDue" | "outputsTaken"> {
  return {
    async outputsDue({ sessionId, handAgentIds, limit }) {
      const { rows } = await pool.query<HandRow>(
        `select ${prefixedHandColumns("h")} from hands h
           join hand_agents a using (hand_agent_id) join sessions s using (session_id)
         where ($1::text is null or h.session_id = $1) and ($2::text[] is null or h.hand_agent_id = any($2))
           and h.state = 'ready' and h.last_used_at > coalesce(h.outputs_at, timestamptz '-infinity')
           and h.environment::json ->> 'sessionFiles' = 'true' and s.status in ('idle', 'terminated')
           and a.drivers::jsonb @> jsonb_build_array(
             jsonb_build_object('name', h.driver, 'capabilities', array['session_files']))
         order by h.last_used_at, h.hand_id limit $3`,
        [sessionId ?? null, handAgentIds ?? null, limit],
      );
      return rows.map(toHand);
    },
    async outputsTaken(handId, usedAt) {
      await pool.query(
        `update hands set outputs_at = $2::timestamptz + ${SAME_USE}
           where hand_id = $1 and (outputs_at is null or outputs_at < $2)`,
        [handId, usedAt],
      );
    },
  };
}
