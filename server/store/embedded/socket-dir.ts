/** The folder of Postgres' unix socket. Its mode (0700) is what guards the database, so it is never shared with anything. */
import { chmod, chown, lstat, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { EmbeddedPostgresError, fileProblem } from "./embedded-postgres-error.ts";
import { makePrivateFolder, type Placement, readNote } from "./placement.ts";

/** The port in the socket's name; nothing listens on TCP. */
export const SOCKET_PORT = 5432;

/** sockaddr_un holds 108 bytes on Linux and 104 on macOS, with a zero at the end. */
const SOCKET_PATH_BYTES = process.platform === "darwin" ? 103 : 107;

/** The longest name that Postgres gives a file it binds or locks in the folder. */
const fits = (folder: string) =>
  Buffer.byteLength(join(folder, `.s.PGSQL.${SOCKET_PORT}`)) <= SOCKET_PATH_BYTES;

/** Makes (or finds again) the socket's folder: in the data directory, or under the temporary directory when that path is too long. */
export async function ensureSocketDir(placement: Placement): Promise<string> {
  const { home, runAs } = placement;
  const inside = join(home, "socket");
  try {
    if (fits(inside)) {
      await makePrivateFolder(inside, runAs);
      return inside;
    }
    const note = join(home, "socket-dir");
    const noted = await readNote(note);
    if (noted && fits(noted) && (await isPrivate(noted, placement))) return noted;
    for (const parent of [tmpdir(), "/tmp"]) {
      if (!fits(join(parent, "tendon-XXXXXX"))) continue;
      const made = await mkdtemp(join(parent, "tendon-"));
      await chmod(made, 0o700);
      if (runAs.kind === "user") await chown(made, runAs.uid, runAs.gid);
      await writeFile(note, made);
      return made;
    }
  } catch (error) {
    throw fileProblem(error, home);
  }
  throw new EmbeddedPostgresError(
    "failed",
    `No folder has a path short enough for a unix socket (${SOCKET_PATH_BYTES} bytes): point TENDON_DATA_DIR to a shorter path.`,
  );
}

/** Removes a folder under the temporary directory; the one in the data directory stays. */
export async function removeSocketDir(placement: Placement, socketDir: string): Promise<void> {
  if (dirname(socketDir) === placement.home) return;
  await rm(socketDir, { recursive: true, force: true });
  await rm(join(placement.home, "socket-dir"), { force: true });
}

/** A folder in a place that all can write is used again only if it is still ours alone. */
async function isPrivate(path: string, placement: Placement): Promise<boolean> {
  const found = await lstat(path).catch(() => undefined);
  const uid = placement.runAs.kind === "user" ? placement.runAs.uid : process.getuid?.();
  return found?.isDirectory() === true && (found.mode & 0o077) === 0 && found.uid === uid;
}
