import type { Checkpoint } from "../../../kit/chain/checkpoint.ts";
import type { CheckpointStore } from "../checkpoints.ts";
import type { Pool } from "./pool.ts";

interface SignedRow {
  session_id: string;
  position: number;
  hash: Buffer;
  signed_at: Date;
  public_key: string;
  signature: Buffer;
}

export function createCheckpointStore(pool: Pool): CheckpointStore {
  return {
    async unsigned({ sessionId, waitingMs, limit }) {
      const one = sessionId === undefined ? "and $3::text is null" : "and c.session_id = $3";
      const { rows } = await pool.query<{ session_id: string; position: number; hash: Buffer }>(
        `select c.session_id, c.position, e.hash from checkpoints c
             join events e on e.session_id = c.session_id and e.position = c.position
           where c.signature is null and e.hash is not null ${one}
             and c.requested_at <= clock_timestamp() - $1 * interval '1 millisecond'
           order by c.requested_at, c.position limit $2`,
        [waitingMs, limit, sessionId ?? null],
      );
      return rows.map((row) => ({
        sessionId: row.session_id,
        position: row.position,
        hash: row.hash.toString("hex"),
      }));
    },
    async request(sessionIds) {
      const { rows } = await pool.query<{ session_id: string }>(
        `insert into checkpoints (session_id, position)
           select session_id, head from sessions
             where session_id = any($1) and chain_hash is not null and head > checkpoint_position
               and (archived_at is not null or work_position <= rested_position and status in ('idle', 'terminated'))
           on conflict do nothing returning session_id`,
        [sessionIds],
      );
      return rows.map((row) => row.session_id);
    },
    async sign({ sessionId, position, hash, signedAt, publicKey, signature }) {
      const { rows } = await pool.query<{ signed: boolean }>(
        "select sign_checkpoint($1, $2, $3, $4, $5, $6) as signed",
        [sessionId, position, Buffer.from(hash, "hex"), signedAt, publicKey, Buffer.from(signature)],
      );
      return rows[0]!.signed;
    },
    async list({ sessionId, fromPosition, toPosition, limit }) {
      const { rows } = await pool.query<SignedRow>(
        `select session_id, position, hash, signed_at, public_key, signature from checkpoints
           where session_id = $1 and position between $2 and $3 and signature is not null order by position limit $4`,
        [sessionId, fromPosition, toPosition, limit],
      );
      return rows.map(toCheckpoint);
    },
  };
}

function toCheckpoint(row: SignedRow): Checkpoint {
  return {
    sessionId: row.session_id,
    position: row.position,
    hash: row.hash.toString("hex"),
    signedAt: row.signed_at,
    publicKey: row.public_key,
    signature: row.signature,
  };
}
