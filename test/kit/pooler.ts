/** PgBouncer in transaction mode in front of a Postgres, as many installations have it; a process of its own, reached by a unix socket. */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createPool } from "../../server/store/postgres/pool.ts";
import { eventually } from "./eventually.ts";

const program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].find((path) => existsSync(path));

/** Where it is missing, tests that need it are skipped. */
export const hasPooler = program !== undefined;

export interface Pooler {
  /** The same database, through the pooler. */
  readonly url: string;
  /** Kills it, with all connections, and starts it again at the same URL. */
  crash(): Promise<void>;
  stop(): Promise<void>;
}

/** `serverConnections`: most connections to the database, for however many clients. */
export async function startPooler(databaseUrl: string, serverConnections: number): Promise<Pooler> {
  if (program === undefined) throw new Error("PgBouncer is not installed");
  const folder = mkdtempSync(join(tmpdir(), "tendon-pooler-"));
  // Node knows no URL with a user and without a host.
  const direct = new URL(databaseUrl.replace("@/", "@socket/"));
  const target = [
    `host=${direct.searchParams.get("host") ?? direct.hostname}`,
    `port=${direct.port || 5432}`,
    `user=${direct.username}`,
    direct.password ? `password=${decodeURIComponent(direct.password)}` : "",
  ].join(" ");
  const settings = [
    `[databases]\n* = ${target}\n[pgbouncer]\npool_mode = transaction\nauth_type = any\nmax_client_conn = 500`,
    `default_pool_size = ${serverConnections}\nunix_socket_dir = ${folder}\nlisten_port = 6432\n`,
  ];
  writeFileSync(join(folder, "pgbouncer.ini"), settings.join("\n"), { mode: 0o600 });
  // It refuses to be root; the socket's folder may be root's alone.
  const asOther =
    process.getuid?.() === 0 ? ["unshare", "--user", "--map-user=65534", "--map-group=65534"] : [];
  const [command = "", ...args] = [...asOther, program, join(folder, "pgbouncer.ini")];
  const url = `postgresql://tendon@${direct.pathname}?host=${encodeURIComponent(folder)}&port=6432`;
  let child = await started(command, args, url);
  return {
    url,
    async crash() {
      await ended(child, "SIGKILL");
      // Its socket stays behind, and it would not start over it.
      rmSync(join(folder, ".s.PGSQL.6432"), { force: true });
      child = await started(command, args, url);
    },
    async stop() {
      await ended(child, "SIGTERM");
      rmSync(folder, { recursive: true });
    },
  };
}

async function started(command: string, args: readonly string[], url: string): Promise<ChildProcess> {
  const child = spawn(command, args, { stdio: "ignore" });
  const probe = createPool({ url, max: 1, applicationName: "pooler probe" });
  try {
    await eventually(() => probe.query("select 1"));
    return child;
  } catch (error) {
    await ended(child, "SIGKILL");
    throw error;
  } finally {
    await probe.close();
  }
}

async function ended(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = new Promise((resolve) => child.once("exit", resolve));
  child.kill(signal);
  await exit;
}
