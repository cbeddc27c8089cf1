/**
 * Where the embedded Postgres lives and as whom it runs: decided at every start, from what is there.
 *
 * `<data dir>/postgres/` holds `cluster/` (the database), `log`, `socket/` and small notes of ours. Only root on a machine
 * without user namespaces may have it elsewhere: another user then has to reach it, so it goes to a folder of the system
 * and `<data dir>/postgres/location` names that folder.
 */
import { createHash } from "node:crypto";
import { chmod, chown, cp, mkdir, readFile, realpath, rename, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Logger } from "../../../kit/log.ts";
import { type Binaries, binariesAt, prepareBinaries } from "./binaries.ts";
import { EmbeddedPostgresError, fileProblem } from "./embedded-postgres-error.ts";
import { canRun, type RunAs, unprivilegedUser } from "./run-as.ts";

export interface Placement {
  /** The folder for everything below, without symbolic links in its path. */
  home: string;
  /** The database's own folder; it may not exist yet. */
  cluster: string;
  logPath: string;
  binaries: Binaries;
  runAs: RunAs;
}

/** Folders of the system that any user can reach and that outlive a restart of the machine. */
const SYSTEM_FOLDERS = ["/var/lib/tendon-postgres", "/var/tmp/tendon-postgres"];

/** Decides, makes the folders, and makes sure that Postgres will be able to use them. */
export async function placePostgres(dataDir: string, log: Logger): Promise<Placement> {
  const folder = await makeFolder(join(dataDir, "postgres"));
  const home = (await readNote(join(folder, "location"))) ?? folder;
  const binaries = await prepareBinaries(join(folder, "lib"));
  if (process.getuid?.() !== 0) return placement(home, binaries, { kind: "self" });

  const owner = await ownerOf(join(home, "cluster"));
  if (owner && owner.uid !== 0) {
    const runAs: RunAs = { kind: "user", name: `user ${owner.uid}`, ...owner };
    if (!(await canRun(runAs, "/bin/true", {}, home))) throw unreachable(home, runAs.name);
    return placement(home, await reachableBinaries(binaries, runAs), runAs);
  }
  const user = await unprivilegedUser();
  if (!user) throw new EmbeddedPostgresError("unsupported", NO_USER);
  const namespace: RunAs = { kind: "user_namespace", uid: user.uid, gid: user.gid };
  if (await canRun(namespace, binaries.postgres, binaries.environment, home)) {
    return placement(home, binaries, namespace);
  }
  if (owner) throw unreachable(home, user.name);
  return placeForUser(folder, binaries, { kind: "user", ...user }, log);
}

const NO_USER =
  "Postgres refuses to run as root, and this machine has no other user: start Tendon as another user, or set TENDON_DATABASE_URL.";

/** A folder of ours alone; its path is resolved, because it is compared with what running processes say. */
async function makeFolder(path: string): Promise<string> {
  try {
    await mkdir(path, { recursive: true, mode: 0o700 });
    // Writing now turns a read-only file system into one clear line instead of Postgres' own.
    const probe = join(path, `.probe-${process.pid}`);
    await writeFile(probe, "");
    await rm(probe);
    return await realpath(path);
  } catch (error) {
    throw fileProblem(error, path);
  }
}

/** The user namespace or the user that the database was made for is no longer to be had. */
function unreachable(home: string, who: string): EmbeddedPostgresError {
  return new EmbeddedPostgresError(
    "unsupported",
    `The database in ${home} cannot be reached by ${who}, as whom Postgres would have to run: allow user namespaces again, start as the user that made it, or set TENDON_DATABASE_URL.`,
  );
}

async function placeForUser(
  folder: string,
  binaries: Binaries,
  runAs: RunAs & { kind: "user" },
  log: Logger,
): Promise<Placement> {
  const owned = async (path: string) => {
    await mkdir(path, { recursive: true, mode: 0o700 });
    await chown(path, runAs.uid, runAs.gid);
    return (await canRun(runAs, "/bin/true", {}, path)) ? path : undefined;
  };
  const name = createHash("sha256").update(folder).digest("hex").slice(0, 16);
  let home = await owned(folder);
  for (const parent of SYSTEM_FOLDERS) {
    if (home) break;
    await mkdir(parent, { recursive: true, mode: 0o711 });
    home = await owned(join(parent, name));
    if (home) await writeFile(join(folder, "location"), home);
  }
  if (!home) throw unreachable(folder, runAs.name);
  log.warn(
    { user: runAs.name, home },
    "user namespaces are off and Postgres refuses to be root: it runs as another user",
  );
  return placement(home, await reachableBinaries(binaries, runAs), runAs);
}

/** The binaries as they are where `runAs` can run them, else a copy in a folder of the system. */
async function reachableBinaries(binaries: Binaries, runAs: RunAs): Promise<Binaries> {
  if (await canRun(runAs, binaries.postgres, binaries.environment, "/tmp")) return binaries;
  const version = createHash("sha256").update(binaries.root).digest("hex").slice(0, 8);
  for (const parent of SYSTEM_FOLDERS) {
    const root = join(parent, `binaries-${binaries.major}-${version}`);
    const copy = { ...binariesAt(root, binaries.major), environment: { LD_LIBRARY_PATH: join(root, "lib") } };
    if (await canRun(runAs, copy.postgres, copy.environment, "/tmp")) return copy;
    const unfinished = `${root}.${process.pid}`;
    try {
      await mkdir(parent, { recursive: true, mode: 0o711 });
      await cp(binaries.root, unfinished, { recursive: true, verbatimSymlinks: true });
      const links = binaries.environment.LD_LIBRARY_PATH?.split(":")[0];
      if (links) await cp(links, join(unfinished, "lib"), { recursive: true, dereference: true });
      await chmod(unfinished, 0o755);
      await rename(unfinished, root);
    } catch {
      // Another start may have been first; whether there is a copy to run is asked next.
      await rm(unfinished, { recursive: true, force: true });
    }
    if (await canRun(runAs, copy.postgres, copy.environment, "/tmp")) return copy;
  }
  throw new EmbeddedPostgresError(
    "unsupported",
    `The Postgres binaries in ${binaries.root} cannot be reached by the user they would run as, and no copy could be made: start Tendon as that user, or set TENDON_DATABASE_URL.`,
  );
}

function placement(home: string, binaries: Binaries, runAs: RunAs): Placement {
  return { home, binaries, runAs, cluster: join(home, "cluster"), logPath: join(home, "log") };
}

/** One line of text kept in a file, or undefined where there is none. */
export async function readNote(path: string): Promise<string | undefined> {
  const text = await readFile(path, "utf8").catch(() => "");
  return text.trim() === "" ? undefined : text.trim();
}

export async function ownerOf(path: string): Promise<{ uid: number; gid: number } | undefined> {
  const found = await stat(path).catch(() => undefined);
  return found && { uid: found.uid, gid: found.gid };
}

/** Makes `path` a folder that only Postgres' user (and root) can enter. */
export async function makePrivateFolder(path: string, runAs: RunAs): Promise<void> {
  await mkdir(path, { recursive: true, mode: 0o700 });
  await chmod(path, 0o700);
  if (runAs.kind === "user") await chown(path, runAs.uid, runAs.gid);
}
