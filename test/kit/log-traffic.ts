/**
 * Writers and readers of logs that expect everything to fail but the log's promises: they go to any server, send the same
 * request again until it is acknowledged, and go on reading from where they were.
 */
import { setTimeout as delay } from "node:timers/promises";
import { expect } from "vitest";
import { type Connection, dial } from "../../kit/dial/dial.ts";
import { isTendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { Pool } from "../../server/store/postgres/pool.ts";
import type { SeededRandom } from "./seeded-random.ts";

export interface Traffic {
  /** Servers on one database. */
  readonly urls: readonly string[];
  readonly key: string;
  readonly sessionIds: readonly string[];
  /** Every request that was made, for the comparison with the logs. */
  readonly requests: SentRequest[];
  /** Answers that did not come, by reason. */
  readonly failures: Map<string, number>;
  /** Ends those who would otherwise try for ever, once the test has ended some other way. */
  readonly over: AbortSignal;
}

export interface SentRequest {
  readonly sessionId: string;
  readonly events: readonly { id: string; type: string; payload: string }[];
  /** Once it was acknowledged. */
  positions: readonly number[] | undefined;
}

/** What a caller may be told while servers and databases die. Anything else is a bug. */
const PASSING = ["UNAVAILABLE", "DRAINING", "DEADLINE_EXCEEDED"] as const;
const CALL_MS = 20_000;

/** A connection to any of the servers, made anew whenever a call failed. */
class AnyServer {
  private readonly traffic: Traffic;
  private readonly random: SeededRandom;
  private connection: Connection | undefined;

  constructor(traffic: Traffic, random: SeededRandom) {
    this.traffic = traffic;
    this.random = random;
  }

  client(): Client<typeof SessionService> {
    const { urls, key, over } = this.traffic;
    over.throwIfAborted();
    this.connection ??= dial({ url: this.random.pick(urls), token: () => key, proxy: {} });
    return this.connection.client(SessionService);
  }

  leave(): void {
    this.connection?.close();
    this.connection = undefined;
  }

  /** Throws what may not happen. */
  async failed(error: unknown): Promise<void> {
    const reason = isTendonError(error) ? error.reason : "";
    if (!(PASSING as readonly string[]).includes(reason)) throw error;
    this.traffic.failures.set(reason, (this.traffic.failures.get(reason) ?? 0) + 1);
    this.leave();
    await delay(this.random.between(5, 60));
  }
}

/** One writer of `count` requests, each of one to four events for any session. */
export async function write(
  traffic: Traffic,
  random: SeededRandom,
  { count, pauseMs }: { count: number; pauseMs: number },
): Promise<void> {
  const server = new AnyServer(traffic, random);
  const heads = new Map<string, bigint>();
  for (let n = 0; n < count; n++) {
    const sessionId = random.pick(traffic.sessionIds);
    const request: SentRequest = {
      sessionId,
      events: Array.from({ length: random.between(1, 4) }, (_, index) => ({
        id: newId("event"),
        type: "acme.noted",
        payload: JSON.stringify({ n, index, pad: "x".repeat(random.between(0, 200)) }),
      })),
      positions: undefined,
    };
    traffic.requests.push(request);
    request.positions = await send(server, request, random.chance(0.2) ? heads : undefined);
    heads.set(sessionId, BigInt(request.positions.at(-1) ?? 0));
    if (random.chance(0.2)) {
      // As after a lost answer, often at another server.
      if (random.chance(0.7)) server.leave();
      expect(await send(server, request, undefined)).toEqual(request.positions);
    }
    if (pauseMs > 0) await delay(random.between(0, pauseMs));
  }
  server.leave();
}

/** The same until it is acknowledged. With `heads`, the log must be where the writer thinks it is. */
async function send(
  server: AnyServer,
  { sessionId, events }: SentRequest,
  heads: Map<string, bigint> | undefined,
): Promise<number[]> {
  let expectedPosition = heads?.get(sessionId);
  for (;;) {
    try {
      const asked = { sessionId, events: [...events] };
      const { receipts } = await server
        .client()
        .emitEvents(expectedPosition === undefined ? asked : { ...asked, expectedPosition }, {
          deadlineMs: CALL_MS,
        });
      expect(receipts.map(({ id }) => id)).toEqual(events.map(({ id }) => id));
      return receipts.map(({ position }) => Number(position));
    } catch (error) {
      if (isTendonError(error, "POSITION_MISMATCH")) expectedPosition = BigInt(error.metadata.head ?? "");
      else await server.failed(error);
    }
  }
}

/** Event ids by position, as a reader has come to know them. */
export type SeenLog = string[];

/** Follows one session over any server until `until` says that it has seen enough; leaves and comes back now and then. */
export async function follow(
  traffic: Traffic,
  random: SeededRandom,
  sessionId: string,
  until: (seen: SeenLog) => boolean,
): Promise<SeenLog> {
  const server = new AnyServer(traffic, random);
  const seen: SeenLog = [];
  while (!until(seen)) {
    let left = random.between(1, 200);
    // Without a deadline of its own, a watch would not notice that there is nothing more to come.
    const watching = server
      .client()
      .watchEvents({ sessionId, afterPosition: BigInt(seen.length) }, { deadlineMs: 3_000 });
    try {
      for await (const { kind } of watching) {
        if (kind.case === "progress") expect(Number(kind.value.position)).toBe(seen.length);
        if (kind.case !== "event") continue;
        expect(Number(kind.value.position)).toBe(seen.length + 1);
        seen.push(kind.value.id);
        left -= 1;
        if (left <= 0 || until(seen)) break;
      }
      server.leave();
    } catch (error) {
      await server.failed(error);
    }
  }
  server.leave();
  return seen;
}

/** Reads on from the last position with GetEvents, again and again. */
export async function tail(
  traffic: Traffic,
  random: SeededRandom,
  sessionId: string,
  until: (seen: SeenLog) => boolean,
): Promise<SeenLog> {
  const server = new AnyServer(traffic, random);
  const seen: SeenLog = [];
  while (!until(seen)) {
    try {
      const request = { sessionId, afterPosition: BigInt(seen.length), limit: random.between(1, 500) };
      const { events } = await server.client().getEvents(request, { deadlineMs: CALL_MS });
      for (const { id, position } of events) {
        expect(Number(position)).toBe(seen.length + 1);
        seen.push(id);
      }
      if (events.length === 0) await delay(random.between(0, 10));
      else if (random.chance(0.05)) server.leave();
    } catch (error) {
      await server.failed(error);
    }
  }
  server.leave();
  return seen;
}

/** L1 and L2: what the database has is dense, holds every request once and whole, and where its writer was told. Gives ids by position. */
export async function expectLogs(pool: Pool, traffic: Traffic): Promise<Map<string, SeenLog>> {
  const logs = new Map<string, SeenLog>();
  for (const sessionId of traffic.sessionIds) {
    const { rows } = await pool.query<{ position: number; event_id: string; payload: string }>(
      "select position, event_id, payload from events where session_id = $1 order by position",
      [sessionId],
    );
    expect(rows.map(({ position }) => position)).toEqual(rows.map((_, index) => index + 1));
    const mine = traffic.requests.filter((request) => request.sessionId === sessionId);
    expect(rows.length).toBe(mine.reduce((sum, { events }) => sum + events.length, 0));
    for (const { events, positions } of mine) {
      const first = positions?.[0] ?? 0;
      expect(positions).toEqual(events.map((_, index) => first + index));
      const found = rows.slice(first - 1, first - 1 + events.length);
      expect(found.map((row) => [row.event_id, row.payload])).toEqual(
        events.map(({ id, payload }) => [id, payload]),
      );
    }
    logs.set(
      sessionId,
      rows.map((row) => row.event_id),
    );
  }
  return logs;
}
