/** A database of its own for a test file, in the one Postgres of the run. */
import { request } from "node:http";
import { expect, inject } from "vitest";
import { createPool, type Pool } from "../../server/store/postgres/pool.ts";
import { startPooler } from "./pooler.ts";
import type { CreateRequest } from "./postgres-service.ts";

declare module "vitest" {
  export interface ProvidedContext {
    /** Where the run's `PostgresService` listens. */
    postgresService: string;
    /** Whether all databases are reached through a transaction-mode pooler. */
    behindPooler: boolean;
  }
}

export interface TestDatabase {
  /** For `TENDON_DATABASE_URL` of a program under test, or a pool of your own. */
  readonly url: string;
  /** The same database past the pooler, if there is one: for LISTEN. */
  readonly directUrl: string;
  /** One pool, made at the first call and closed by `drop`. */
  pool(): Pool;
  /** Closes the pool and drops the database. Fails when other connections were left open: something under test leaked them. */
  drop(): Promise<void>;
}

/** Fewer than the pools of two servers have. */
const POOLER_CONNECTIONS = 8;

/** Call it in `beforeAll` and `drop` in `afterAll`. The database is migrated unless `migrated` is false (then it is empty). */
export async function createTestDatabase({
  migrated = true,
}: {
  migrated?: boolean;
} = {}): Promise<TestDatabase> {
  const ask: CreateRequest = { migrated, owner: expect.getState().testPath ?? "unknown" };
  const { name, url: directUrl } = await call<{ name: string; url: string }>("/create", ask);
  const pooler = inject("behindPooler") ? await startPooler(directUrl, POOLER_CONNECTIONS) : undefined;
  const url = pooler?.url ?? directUrl;
  let pool: Pool | undefined;
  return {
    url,
    directUrl,
    pool() {
      pool ??= createPool({ url, max: 10, applicationName: "test" });
      return pool;
    },
    async drop() {
      await pool?.close();
      await pooler?.stop();
      const { connections } = await call<{ connections: string[] }>("/drop", { name });
      if (connections.length > 0) {
        throw new Error(`connections to the test database were left open by: ${connections.join(", ")}`);
      }
    },
  };
}

function call<T>(path: string, body: object): Promise<T> {
  return new Promise((resolve, reject) => {
    const socketPath = inject("postgresService");
    const outgoing = request({ socketPath, path, method: "POST", agent: false }, (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (chunk) => {
        text += chunk;
      });
      response.on("error", reject);
      response.on("end", () => {
        if (response.statusCode === 200) resolve(JSON.parse(text) as T);
        else reject(new Error(`the test run's Postgres: ${text}`));
      });
    });
    outgoing.on("error", reject).end(JSON.stringify(body));
  });
}
