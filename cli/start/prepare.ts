/** What has to hold before anything is started: a data directory of one's own, nobody else in it, a free port. */
import { randomBytes, randomInt } from "node:crypto";
import { existsSync } from "node:fs";
import { chmod, mkdir, rename, rm, stat, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import type { Clock } from "../../kit/clock.ts";
import { StartupError } from "../../kit/program.ts";
import { TENDON } from "../command-name.ts";
import {
  type DataDir,
  isAlive,
  processFacts,
  type RunRecord,
  readRunRecord,
  runRecordFile,
} from "../data-dir.ts";

/** Programs of a start that was killed stop by themselves; longer than this they are ended. */
const LEFT_OVERS_WITHIN_MS = 12_000;
const POLL_MS = 50;
const FIRST_KEPT_PORT = 30_000;
const LAST_KEPT_PORT = 32_768;
const KEPT_PORT_TRIES = 20;

/** Makes the directory with mode 0700. Throws a StartupError when it cannot be used. */
export async function prepareDataDir({ path }: DataDir): Promise<void> {
  try {
    await makeFolder(path);
    const { mode, uid } = await stat(path);
    const isOwn = uid === process.getuid?.();
    if (process.platform !== "win32" && isOwn && (mode & 0o077) !== 0) await chmod(path, 0o700);
    const probe = join(path, `.probe-${randomBytes(6).toString("hex")}`);
    await writeFile(probe, "");
    await rm(probe);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const why =
      code === "EACCES" || code === "EPERM"
        ? "permission denied"
        : code === "EROFS"
          ? "it is read-only"
          : message;
    throw new StartupError(
      `cannot write to the data directory ${path}: ${why}; name another with --data-dir`,
    );
  }
}

/** The folder alone first: in places such as /proc, where nobody can make one, Node's recursive way never ends. */
async function makeFolder(path: string): Promise<void> {
  try {
    await mkdir(path, { mode: 0o700 });
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "EEXIST") return;
    if (code !== "ENOENT" || existsSync(dirname(path))) throw error;
    await mkdir(path, { recursive: true, mode: 0o700 });
  }
}

/** The `tendon start` that runs on the directory, if there is one. */
export async function runningStart(dataDir: DataDir): Promise<RunRecord | undefined> {
  const record = await readRunRecord(dataDir);
  return record !== undefined && record.pid !== process.pid && (await isAlive(record)) ? record : undefined;
}

/** Waits until nothing of a start that was killed is left. Throws a StartupError when one still runs. */
export async function settleFormerStart(
  dataDir: DataDir,
  clock: Clock,
  note: (text: string) => void,
): Promise<void> {
  const running = await runningStart(dataDir);
  if (running !== undefined) {
    throw new StartupError(
      `Tendon runs already on ${dataDir.path} (process ${running.pid}, ${running.url}); use it with "${TENDON} chat", or stop it first`,
    );
  }
  const children = (await readRunRecord(dataDir))?.children ?? [];
  const left = async () => {
    const alive = await Promise.all(children.map(isAlive));
    return children.filter((_, index) => alive[index]);
  };
  const deadlineMs = clock.monotonicMs() + LEFT_OVERS_WITHIN_MS;
  let rest = await left();
  if (rest.length > 0) note("Waiting for the programs of a start that was killed …");
  while (rest.length > 0) {
    if (clock.monotonicMs() > deadlineMs) for (const { pid } of rest) endProcess(pid);
    await clock.sleep(POLL_MS);
    rest = await left();
  }
}

function endProcess(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // It went by itself.
  }
}

export async function saveRunRecord(
  dataDir: DataDir,
  url: string,
  children: readonly { name: string; pid: number }[],
): Promise<void> {
  const withStart = async (pid: number) => ({ pid, startedAt: (await processFacts(pid)).startedAt });
  const record: RunRecord = {
    ...(await withStart(process.pid)),
    url,
    children: await Promise.all(children.map(async ({ name, pid }) => ({ name, ...(await withStart(pid)) }))),
  };
  const path = runRecordFile(dataDir);
  await writeFile(`${path}.new`, `${JSON.stringify(record)}\n`, { mode: 0o600 });
  await rename(`${path}.new`, path);
}

export async function forgetRunRecord(dataDir: DataDir): Promise<void> {
  await rm(runRecordFile(dataDir), { force: true });
}

/** The port itself, or a free one for 0. Throws a StartupError when it is in use or cannot be had. */
export function findPort(host: string, port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", (error: NodeJS.ErrnoException) => {
      reject(new StartupError(portProblem(error, host, port)));
    });
    server.listen({ host, port, exclusive: true }, () => {
      const address = server.address();
      const found = typeof address === "object" && address !== null ? address.port : port;
      server.close(() => resolve(found));
    });
  });
}

/**
 * For a program that may have to start again and be found: `former` if it is free, else one below those that the system
 * gives to whoever asks for any, which nobody takes by chance while the program is away. 0: let it take any.
 */
export async function keptPort(host: string, former: number): Promise<number> {
  for (let tries = 0; tries < KEPT_PORT_TRIES; tries += 1) {
    const port = tries === 0 && former !== 0 ? former : randomInt(FIRST_KEPT_PORT, LAST_KEPT_PORT);
    const found = await findPort(host, port).catch(() => 0);
    if (found !== 0) return found;
  }
  return 0;
}

function portProblem(error: NodeJS.ErrnoException, host: string, port: number): string {
  const where = `port ${port} of ${host}`;
  if (error.code === "EADDRINUSE")
    return `${where} is in use: stop what uses it, or start with --port N (0 takes a free one)`;
  if (error.code === "EACCES") return `${where} may not be used: start with --port N above 1023`;
  if (error.code === "EADDRNOTAVAIL" || error.code === "ENOTFOUND")
    return `this machine has no address ${host} (TENDON_HOST)`;
  return `cannot listen on ${where}: ${error.message}`;
}
