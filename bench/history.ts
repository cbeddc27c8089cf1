/**
 * What reading back costs: a slice of 100 events at random depths of a long log, against the same slice of a log with a
 * thousand events; and the latter against the plainest query for the same rows. At the store's interface, so that nothing
 * but the database's work can differ.
 */
import type { EventStore } from "../server/store/events.ts";
import { createEventStore } from "../server/store/postgres/events.ts";
import type { Pool } from "../server/store/postgres/pool.ts";
import { createWorld } from "../test/kit/session-rig.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { type Contender, interleave, percentile } from "./frame/measure.ts";
import { startPrivatePostgres } from "./frame/private-postgres.ts";
import { SAMPLE_PAYLOAD, SAMPLE_TYPE } from "./frame/sample-event.ts";

const SLICE = 100;
const SHORT = 1_000;
const LONG = [100_000, 1_000_000] as const;
const EVENTS_PER_STATEMENT = 50_000;
const ROUNDS = 20;
const PER_ROUND = 20;
const WARM_UP = 100;
const AIM = 1.5;
const INLINE_LIMIT_BYTES = 1024 * 1024;
const MAX_BYTES = 2 * 1024 * 1024;

export const history: Bench = {
  name: "history",
  describe: `a slice of ${SLICE} events at random depths of long logs, against a log of ${SHORT}`,
  async run(context) {
    const { pool } = await startPrivatePostgres(context);
    const world = await createWorld(pool);
    const events = createEventStore(pool);
    context.defer(() => events.close());
    // The longest takes a while to write: only where all is measured.
    const lengths = [SHORT, ...LONG.filter((length) => length < 1_000_000 || context.scale >= 1)];
    const contenders: Contender[] = [];
    for (const length of lengths) {
      const sessionId = await world.newSession();
      await writeLog(context, pool, { sessionId, length });
      for (const descending of [false, true]) {
        const once = () => readSlice(events, { sessionId, length, descending });
        contenders.push({ name: nameOf(length, descending), once });
      }
      if (length === SHORT)
        contenders.push({ name: "plain", once: () => plainSlice(pool, sessionId, length) });
    }
    await pool.query("vacuum (analyze) events, sessions");
    context.say("measuring …");
    const rounds = Math.max(1, Math.round(ROUNDS * context.scale));
    const samples = await interleave(contenders, { rounds, perRound: PER_ROUND, warmUp: WARM_UP });
    return figures(lengths, (name, p) => percentile(samples.get(name)?.ms ?? [], p));
  },
};

const nameOf = (length: number, descending: boolean) =>
  `${length.toLocaleString("en")} events, ${descending ? "newest" : "oldest"} first`;

function figures(lengths: readonly number[], at: (name: string, p: number) => number): Figure[] {
  const rows: Figure[] = [];
  for (const length of lengths.slice(1)) {
    for (const descending of [false, true]) {
      const product = at(nameOf(length, descending), 0.5);
      const baseline = at(nameOf(SHORT, descending), 0.5);
      rows.push({
        figure: `${nameOf(length, descending)}, p50, against ${SHORT.toLocaleString("en")}`,
        unit: "ms",
        product,
        baseline,
        aim: `≤ ${AIM}× baseline`,
        met: product <= AIM * baseline,
        note: `p99 ${at(nameOf(length, descending), 0.99).toFixed(2)} ms`,
      });
    }
  }
  rows.push({
    figure: `${nameOf(SHORT, false)}, p50, against a plain query`,
    unit: "ms",
    product: at(nameOf(SHORT, false), 0.5),
    baseline: at("plain", 0.5),
    aim: undefined,
    met: undefined,
    note: "the plain query has no limit in bytes, leaves out no large text and knows nothing of what brains have taken in",
  });
  return rows;
}

/** As appends would have left it: ids of the same shape, positions without a gap. */
async function writeLog(
  context: BenchContext,
  pool: Pool,
  { sessionId, length }: { sessionId: string; length: number },
): Promise<void> {
  context.say(`writing a log of ${length.toLocaleString("en")} events …`);
  for (let first = 1; first <= length; first += EVENTS_PER_STATEMENT) {
    await pool.query(
      `insert into events (session_id, position, event_id, type, payload)
       select $1, position, 'event_' || md5($1 || position), $4, $5 from generate_series($2::bigint, $3::bigint) as position`,
      [sessionId, first, Math.min(length, first + EVENTS_PER_STATEMENT - 1), SAMPLE_TYPE, SAMPLE_PAYLOAD],
    );
  }
  await pool.query("update sessions set head = $2 where session_id = $1", [sessionId, length]);
}

/** A position with a whole slice on its far side. */
const depth = (length: number) => Math.floor(Math.random() * (length - SLICE));

async function readSlice(
  events: EventStore,
  { sessionId, length, descending }: { sessionId: string; length: number; descending: boolean },
): Promise<void> {
  const after = depth(length);
  const slice = await events.read({
    sessionId,
    afterPosition: descending ? 0 : after,
    beforePosition: descending ? after + SLICE + 1 : undefined,
    descending,
    limit: SLICE,
    maxBytes: MAX_BYTES,
    inlineLimitBytes: INLINE_LIMIT_BYTES,
    withInternal: false,
  });
  if (slice.events.length !== SLICE) throw new Error(`${slice.events.length} events in place of ${SLICE}`);
}

async function plainSlice(pool: Pool, sessionId: string, length: number): Promise<void> {
  await pool.query(
    `select position, event_id, type, thread_id, created_at, payload from events
       where session_id = $1 and position > $2 order by position limit $3`,
    [sessionId, depth(length), SLICE],
  );
}
