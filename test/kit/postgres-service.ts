/**
 * One Postgres for a whole test run, held by the run's main process: workers come and go, it stays.
 *
 * It starts when the first test file asks for a database, so runs without one pay nothing. `TENDON_TEST_DATABASE_URL` names
 * another Postgres (a superuser's URL) to use instead.
 */
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { createServer, type Server } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { isAlive } from "../../server/store/embedded/cluster.ts";
import {
  type EmbeddedPostgres,
  startEmbeddedPostgres,
} from "../../server/store/embedded/embedded-postgres.ts";
import { migrations } from "../../server/store/migrations/index.ts";
import { migrate } from "../../server/store/postgres/migrate.ts";
import { createPool, type Pool } from "../../server/store/postgres/pool.ts";

export interface CreateRequest {
  migrated: boolean;
  /** The test file that asks, for the report of what was left behind. */
  owner: string;
}

const log = createLogger("test", "warn");

export class PostgresService {
  readonly socketPath: string;
  private readonly folder: string;
  private readonly prefix = `tendon_test_${process.pid}`;
  private readonly owners = new Map<string, string>();
  private readonly http: Server;
  private embedded: EmbeddedPostgres | undefined;
  private started: Promise<Pool> | undefined;
  private template: Promise<string> | undefined;
  private count = 0;

  private constructor(folder: string) {
    this.folder = folder;
    this.socketPath = join(folder, "service.sock");
    this.http = createServer((request, response) => {
      let body = "";
      request.setEncoding("utf8").on("data", (chunk) => {
        body += chunk;
      });
      request.on("end", () => {
        this.answer(request.url ?? "", body).then(
          (value) => response.end(JSON.stringify(value)),
          (error: Error) => response.writeHead(500).end(error.message),
        );
      });
    });
  }

  static async start(): Promise<PostgresService> {
    await removeAbandonedRuns();
    const service = new PostgresService(await mkdtemp(join(tmpdir(), `tendon-test-${process.pid}-`)));
    await new Promise<void>((resolve) => service.http.listen(service.socketPath, resolve));
    return service;
  }

  /** Stops everything; then fails if a test file had not dropped its database. */
  async stop(): Promise<void> {
    this.http.closeAllConnections();
    this.http.close();
    const left = [...this.owners.values()];
    try {
      const admin = await this.started;
      if (admin) {
        for (const name of this.owners.keys()) await dropDatabase(admin, name);
        if (this.template) await dropDatabase(admin, await this.template);
        await admin.close();
      }
    } finally {
      await this.embedded?.stop();
      await rm(this.folder, { recursive: true, force: true });
    }
    if (left.length > 0) throw new Error(`test databases were not dropped by: ${left.join(", ")}`);
  }

  private async answer(path: string, body: string): Promise<unknown> {
    if (path === "/create") return this.create(JSON.parse(body));
    if (path === "/drop") return this.drop(JSON.parse(body).name);
    throw new Error(`unknown path ${path}`);
  }

  private async create({ migrated, owner }: CreateRequest): Promise<{ name: string; url: string }> {
    const admin = await this.admin();
    const name = `${this.prefix}_${++this.count}`;
    if (migrated) this.template ??= this.makeTemplate();
    const template = migrated ? await this.template : "template0";
    await admin.query(`create database ${name} template ${template}`);
    this.owners.set(name, owner);
    return { name, url: this.urlOf(name) };
  }

  private async drop(name: string): Promise<{ connections: string[] }> {
    const connections = await dropDatabase(await this.admin(), name);
    this.owners.delete(name);
    return { connections };
  }

  private admin(): Promise<Pool> {
    this.started ??= this.startPostgres();
    return this.started;
  }

  private async startPostgres(): Promise<Pool> {
    if (process.env.TENDON_TEST_DATABASE_URL === undefined) {
      this.embedded = await startEmbeddedPostgres({ dataDir: this.folder, clock: systemClock, log });
    }
    const pool = createPool({ url: this.baseUrl(), max: 2, applicationName: "tendon test service", log });
    if (this.embedded !== undefined) await forgetOnPowerLoss(pool);
    return pool;
  }

  private async makeTemplate(): Promise<string> {
    const admin = await this.admin();
    const name = `${this.prefix}_template`;
    await admin.query(`create database ${name} template template0`);
    const pool = createPool({ url: this.urlOf(name), max: 1, applicationName: "tendon test template", log });
    try {
      await migrate(pool, migrations);
    } finally {
      await pool.close();
    }
    await connectionsOf(admin, name);
    return name;
  }

  private baseUrl(): string {
    const url = process.env.TENDON_TEST_DATABASE_URL ?? this.embedded?.url;
    if (url === undefined) throw new Error("the test run's Postgres is not running");
    return url;
  }

  private urlOf(database: string): string {
    return this.baseUrl().replace(/^(\w+:\/\/[^/]*)\/[^?]*/, `$1/${database}`);
  }
}

/**
 * Nothing of a run outlives its machine, and no test turns that off: the disk need not have seen what is written. Tests that
 * kill a Postgres, or look at what it wrote, have one of their own (own-postgres.ts).
 */
async function forgetOnPowerLoss(admin: Pool): Promise<void> {
  for (const setting of ["fsync", "full_page_writes"]) await admin.query(`alter system set ${setting} = off`);
  await admin.query("select pg_reload_conf()");
}

/** Connections that are just ending are still listed; on a busy machine for seconds. */
const ENDING_WITHIN_MS = 20_000;

/** The application names of clients' connections that are still there after that. Postgres's own workers come and go. */
async function connectionsOf(admin: Pool, name: string): Promise<string[]> {
  const deadline = performance.now() + ENDING_WITHIN_MS;
  for (;;) {
    const { rows } = await admin.query<{ application_name: string }>(
      "select application_name from pg_stat_activity where datname = $1 and backend_type = 'client backend'",
      [name],
    );
    if (rows.length === 0 || performance.now() > deadline) return rows.map((row) => row.application_name);
    await systemClock.sleep(10);
  }
}

async function dropDatabase(admin: Pool, name: string): Promise<string[]> {
  const connections = await connectionsOf(admin, name);
  await admin.query(`drop database if exists ${name} with (force)`);
  return connections;
}

/** Ends the Postgres of runs that were killed, and removes their folders. */
async function removeAbandonedRuns(): Promise<void> {
  for (const name of await readdir(tmpdir())) {
    const pid = Number(/^tendon-test-(\d+)-/.exec(name)?.[1] ?? 0);
    if (pid === 0 || isAlive(pid)) continue;
    const dataDir = join(tmpdir(), name);
    const left: string[] = await readdir(join(dataDir, "postgres", "cluster")).catch(() => []);
    if (left.includes("postmaster.pid")) {
      const postgres = await startEmbeddedPostgres({ dataDir, clock: systemClock, log }).catch(
        () => undefined,
      );
      await postgres?.stop();
    }
    await rm(dataDir, { recursive: true, force: true });
  }
}
