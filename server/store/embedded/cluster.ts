/** Makes the database once. A half-made one never gets the final name, so a kill in the middle costs nothing but time. */
import { open, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Clock } from "../../../kit/clock.ts";
import type { Logger } from "../../../kit/log.ts";
import { diskFull, EmbeddedPostgresError, fileProblem, processProblem } from "./embedded-postgres-error.ts";
import { makePrivateFolder, type Placement, readNote } from "./placement.ts";
import { spawnAs } from "./run-as.ts";

/** The role that owns everything; the only one there is. */
export const ROLE = "tendon";

const UNFINISHED = /^cluster\.new-(\d+)$/;

/** Makes the cluster if there is none, and refuses one that this Postgres cannot read. */
export async function ensureCluster(placement: Placement, clock: Clock, log: Logger): Promise<void> {
  const { cluster, binaries } = placement;
  const made = await readNote(join(cluster, "PG_VERSION"));
  if (made === undefined) {
    if ((await entries(cluster)).length > 0) {
      throw new EmbeddedPostgresError(
        "corrupt",
        `${cluster} holds files but no database (PG_VERSION is missing): restore it from a backup, or move it away to start with an empty one.`,
      );
    }
    return createCluster(placement, clock, log);
  }
  if (made !== String(binaries.major)) {
    throw new EmbeddedPostgresError(
      "version",
      `The database in ${cluster} was made by Postgres ${made}, but Tendon brings Postgres ${binaries.major}: move it with pg_dump and a Postgres ${made} first, or start the Tendon version that made it.`,
    );
  }
}

async function entries(path: string): Promise<string[]> {
  try {
    return await readdir(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw fileProblem(error, path);
  }
}

async function createCluster(placement: Placement, clock: Clock, log: Logger): Promise<void> {
  const { home, cluster } = placement;
  const startedMs = clock.monotonicMs();
  const unfinished = join(home, `cluster.new-${process.pid}`);
  log.info({ cluster }, "creating the database (once, about a second)");
  try {
    await removeAbandoned(home);
    await rm(unfinished, { recursive: true, force: true });
    await makePrivateFolder(unfinished, placement.runAs);
    await initdb(placement, unfinished);
    await rename(unfinished, cluster);
    await flush(home);
  } catch (error) {
    await rm(unfinished, { recursive: true, force: true }).catch(() => {});
    const code = (error as NodeJS.ErrnoException).code;
    // Another program on the same data directory was first; its database is as good.
    if (code === "ENOTEMPTY" || code === "EEXIST") return;
    throw fileProblem(error, cluster);
  }
  log.info({ cluster, tookMs: Math.round(clock.monotonicMs() - startedMs) }, "database created");
}

/** Removes what killed programs left half made. */
async function removeAbandoned(home: string): Promise<void> {
  for (const name of await entries(home)) {
    const pid = Number(UNFINISHED.exec(name)?.[1] ?? 0);
    if (pid > 0 && pid !== process.pid && !isAlive(pid))
      await rm(join(home, name), { recursive: true, force: true });
  }
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

/**
 * Sockets are trusted: Postgres listens on nothing but a unix socket in a folder that only its own user (and root) can enter,
 * and whoever can enter it can read the database's files as well. TCP connections are rejected, also if someone turned them on.
 */
const INITDB_OPTIONS = [
  "-U",
  ROLE,
  "-E",
  "UTF8",
  "--locale=C",
  "--auth-local=trust",
  "--auth-host=reject",
  "--no-instructions",
];

async function initdb(placement: Placement, target: string): Promise<void> {
  const { binaries, runAs, logPath } = placement;
  const child = spawnAs(runAs, binaries.initdb, ["-D", target, ...INITDB_OPTIONS], binaries.environment, {
    stdio: ["ignore", "pipe", "pipe"],
  });
  let said = "";
  const keep = (chunk: string) => {
    said = (said + chunk).slice(-8192);
  };
  child.stdout?.setEncoding("utf8").on("data", keep);
  child.stderr?.setEncoding("utf8").on("data", keep);
  const code = await new Promise<number | null>((resolve, reject) => {
    child.on("error", reject);
    child.on("close", resolve);
  });
  if (code === 0) return;
  throw /No space left on device/.test(said) ? diskFull(target) : processProblem(said, target, logPath);
}

/** The new name is on disk before anything is built on it. */
async function flush(folder: string): Promise<void> {
  const handle = await open(folder, "r");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
