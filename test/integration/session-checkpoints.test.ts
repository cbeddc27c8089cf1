/** The signer of checkpoints by itself, on a real database and a clock that the test moves. */
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { isSigned } from "../../kit/chain/checkpoint.ts";
import { sha256Hex } from "../../kit/chain/event-hash.ts";
import { TendonError } from "../../kit/errors.ts";
import { createLogger } from "../../kit/log.ts";
import { CheckpointSigner } from "../../server/session/checkpoint-signer.ts";
import { createCheckpointStore } from "../../server/store/postgres/checkpoints.ts";
import type { Pool } from "../../server/store/postgres/pool.ts";
import { eventually } from "../kit/eventually.ts";
import { FakeClock } from "../kit/fake-clock.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { createWorld, newSigningKey, type SessionWorld } from "../kit/session-rig.ts";

let database: TestDatabase;
let world: SessionWorld;
beforeAll(async () => {
  database = await createTestDatabase();
  world = await createWorld(database.pool());
});
afterAll(() => database?.drop());
beforeEach(() => database.pool().query("delete from checkpoints"));

/** Sessions that came to rest at these positions, two minutes ago; in what order is for the database to say. */
async function rested(sessions: number, positions: readonly number[]): Promise<string[]> {
  const sessionIds = await Promise.all(Array.from({ length: sessions }, () => world.newSession()));
  const pool = database.pool();
  await pool.query(
    `insert into events (session_id, position, event_id, type, payload, hash)
       select s, p, 'sevt_' || p, 'session.status_idle', '{}', sha256(convert_to(s || p, 'UTF8'))
         from unnest($1::text[]) s, unnest($2::bigint[]) p`,
    [sessionIds, positions],
  );
  for (const position of positions) await ask(sessionIds, position);
  return sessionIds;
}

async function ask(sessionIds: readonly string[], position: number): Promise<void> {
  await database.pool().query(
    `insert into checkpoints (session_id, position, requested_at)
       select s, $2, clock_timestamp() - interval '2 minutes' from unnest($1::text[]) s`,
    [sessionIds, position],
  );
}

async function rig({ starts = true } = {}) {
  const clock = new FakeClock();
  const told: string[] = [];
  const network = { isDown: false, statements: 0 };
  const pool: Pool = {
    ...database.pool(),
    query(sql, values) {
      network.statements += 1;
      if (network.isDown) return Promise.reject(new TendonError("UNAVAILABLE", "the database is away"));
      return database.pool().query(sql, values);
    },
  };
  const checkpoints = createCheckpointStore(pool);
  const signer = new CheckpointSigner({
    checkpoints,
    signingKey: await newSigningKey(),
    onSigned: (sessionId, position) => told.push(`${sessionId} ${position}`),
    clock,
    log: createLogger("test", "silent"),
  });
  if (starts) await signer.start();
  const signedOf = (sessionId: string) =>
    checkpoints.list({ sessionId, fromPosition: 0, toPosition: 100, limit: 100 });
  return { clock, told, network, signer, signedOf };
}

test("what is due is signed at once, in order, with this server's time, and told", async () => {
  const [one = "", other] = await rested(2, [4, 8]);
  const { clock, told, signer, signedOf } = await rig({ starts: false });
  signer.due(one);
  await eventually(() => told.length === 2);
  expect(told).toEqual([`${one} 4`, `${one} 8`]);
  const signed = await signedOf(one);
  expect(signed.map(({ position, hash }) => [position, hash])).toEqual([
    [4, sha256Hex(`${one}4`)],
    [8, sha256Hex(`${one}8`)],
  ]);
  expect(signed.every((checkpoint) => isSigned(checkpoint))).toBe(true);
  expect(signed.every(({ signedAt }) => signedAt.getTime() === clock.nowMs())).toBe(true);
  expect(await signedOf(other!)).toEqual([]);
  await signer.stop();
});

test("what others left is swept up at the start and every 5 s, however much it is, and nothing after the server's end", async () => {
  await rested(120, [1]);
  const { clock, told, signer } = await rig();
  await eventually(() => told.length === 120);
  await rested(130, [1]);
  await clock.advance(5_000);
  await eventually(() => told.length === 250);
  await signer.stop();
  const [late = ""] = await rested(1, [1]);
  await clock.advance(60_000);
  signer.due(late);
  await signer.stop();
  expect(told).toHaveLength(250);
});

test("while the database is away nothing is asked before the next sweep, which makes up for it", async () => {
  const { clock, told, network, signer } = await rig();
  await eventually(() => network.statements === 1);
  const [one = "", other = ""] = await rested(2, [4]);
  network.isDown = true;
  network.statements = 0;
  signer.due(one);
  signer.due(other);
  await eventually(() => network.statements === 1);
  await clock.advance(4_000);
  expect(network.statements).toBe(1);
  network.isDown = false;
  await clock.advance(1_000);
  await eventually(() => told.length === 2);
  await signer.stop();
});

test("a position at or behind one that was signed here is not signed again, what comes after it is", async () => {
  const [sessionId = ""] = await rested(1, [8]);
  const { clock, told, signer, signedOf } = await rig();
  signer.due(sessionId);
  await eventually(() => told.length === 1);
  await database.pool().query(
    `insert into events (session_id, position, event_id, type, payload, hash)
       select $1, p, 'sevt_' || p, 'session.status_idle', '{}', '\\x00' from unnest(array[4, 12]) p`,
    [sessionId],
  );
  await database.pool().query("update checkpoints set signature = null");
  await ask([sessionId], 4);
  await ask([sessionId], 12);
  await clock.advance(5_000);
  await eventually(() => told.length === 2);
  expect(told).toEqual([`${sessionId} 8`, `${sessionId} 12`]);
  expect((await signedOf(sessionId)).map(({ position }) => position)).toEqual([12]);
  await signer.stop();
});
