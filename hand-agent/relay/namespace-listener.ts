/** Listening sockets inside another network namespace. */
import { type ChildProcess, spawn } from "node:child_process";
import { type FileHandle, open } from "node:fs/promises";
import type { Server } from "node:net";
import { type Clock, within } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import { HandError } from "../drivers/driver.ts";
import type { OwnProgram } from "../own-program.ts";
import { LISTEN_COMMAND, type ListenMessage } from "./listen-inside.ts";
import type { NetworkNamespace } from "./relay.ts";

export interface NamespaceListenerOptions {
  readonly namespace: NetworkNamespace;
  readonly port: number;
  /** How the agent starts itself. */
  readonly ownProgram: (args: readonly string[]) => OwnProgram;
  readonly clock: Clock;
  readonly signal?: AbortSignal | undefined;
}

const LISTEN_WITHIN_MS = 15_000;
const END_WITHIN_MS = 2_000;
const MAX_DIAGNOSTIC_CHARS = 500;
const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/** The descriptors of the namespaces in the child; 0 to 3 are taken. */
const NETWORK_FD = 4;
const USER_FD = 5;

/** One server for each loopback address there is. Rejects with HandError; then nothing is left. */
export async function listenInNamespace(options: NamespaceListenerOptions): Promise<Server[]> {
  const { namespace } = options;
  const opened: FileHandle[] = [];
  try {
    // Opened once and handed on: whatever happens to the process meanwhile, it is this namespace and no other.
    const network = await openNamespace(
      "pid" in namespace ? `/proc/${namespace.pid}/ns/net` : namespace.path,
    );
    opened.push(network);
    await refuseOwn(network);
    const user = await foreignUserNamespace(namespace);
    if (user !== undefined) opened.push(user);
    return await listenThere(options, network, user);
  } finally {
    for (const handle of opened) await handle.close();
  }
}

async function openNamespace(path: string): Promise<FileHandle> {
  return open(path, "r").catch((error: NodeJS.ErrnoException) => {
    throw new HandError(`the hand's network namespace cannot be opened (${error.code ?? "failed"})`);
  });
}

/** A mistake here would open a port on the agent's host. */
async function refuseOwn(network: FileHandle): Promise<void> {
  const own = await open("/proc/self/ns/net", "r");
  try {
    const [theirs, ours] = await Promise.all([network.stat(), own.stat()]);
    if (theirs.dev !== ours.dev)
      throw new HandError("what was given as the hand's network namespace is none");
    if (theirs.ino === ours.ino) throw new HandError("the hand shares the network of its host");
  } finally {
    await own.close();
  }
}

/** Without root a network namespace is entered as the owner of the user namespace that it was made in. */
async function foreignUserNamespace(namespace: NetworkNamespace): Promise<FileHandle | undefined> {
  if (process.geteuid?.() === 0 || !("pid" in namespace)) return undefined;
  const user = await openNamespace(`/proc/${namespace.pid}/ns/user`);
  const own = await open("/proc/self/ns/user", "r");
  const isOwn = (await user.stat()).ino === (await own.stat()).ino;
  await own.close();
  if (!isOwn) return user;
  await user.close();
  return undefined;
}

async function listenThere(
  { port, ownProgram, clock, signal }: NamespaceListenerOptions,
  network: FileHandle,
  user: FileHandle | undefined,
): Promise<Server[]> {
  signal?.throwIfAborted();
  const program = ownProgram([LISTEN_COMMAND, `${port}`]);
  const enter = [`--net=/proc/self/fd/${NETWORK_FD}`];
  if (user !== undefined) enter.push(`--user=/proc/self/fd/${USER_FD}`, "--preserve-credentials");
  const child = spawn("nsenter", [...enter, program.file, ...program.args], {
    stdio: ["ignore", "ignore", "pipe", "ipc", network.fd, ...(user === undefined ? [] : [user.fd])],
    env: { PATH }, // nothing of the agent's
  });
  // Not "close": Node leaves that out when the channel was closed on this side.
  const ended = new Promise<void>((resolve) =>
    child.once("exit", () => resolve()).once("error", () => resolve()),
  );
  const servers: Server[] = [];
  const kill = () => child.kill("SIGKILL");
  signal?.addEventListener("abort", kill, { once: true });
  try {
    const tooLate = () => new HandError(`nothing listened there within ${LISTEN_WITHIN_MS / 1000} seconds`);
    await within(clock, LISTEN_WITHIN_MS, received(child, servers), tooLate);
    signal?.throwIfAborted();
    return servers;
  } catch (error) {
    for (const server of servers) server.close();
    signal?.throwIfAborted();
    throw error;
  } finally {
    signal?.removeEventListener("abort", kill);
    if (child.connected) child.disconnect();
    const stopWaiting = clock.after(END_WITHIN_MS, kill);
    await ended;
    stopWaiting();
    child.stderr?.destroy();
  }
}

/** Resolves when all sockets are here. */
function received(child: ChildProcess, servers: Server[]): Promise<void> {
  return new Promise((resolve, reject) => {
    let said = "";
    child.stderr?.setEncoding("utf8").on("data", (text: string) => {
      said = (said + text).slice(0, MAX_DIAGNOSTIC_CHARS);
    });
    child.on("message", (message: ListenMessage, handle) => {
      if ("listening" in message) servers.push(handle as Server);
      else if ("done" in message) resolve();
      else reject(new HandError(explain(message.failed)));
    });
    child.on("error", (error) => reject(new HandError(explain(messageOf(error)))));
    child.on("exit", (code, signal) =>
      reject(new HandError(explain(said.trim() || `${signal ?? `exit ${code}`}`))),
    );
  });
}

/** For people, who can do something about the common ones. */
function explain(failure: string): string {
  if (failure.includes("ENOENT")) return "nsenter (util-linux) is not installed";
  if (failure.includes("Operation not permitted"))
    return "the hand agent may not enter the hand's network namespace (it needs root or CAP_SYS_ADMIN)";
  if (failure === "EADDRINUSE") return "another program in the hand has taken the relay's port";
  if (failure === "EADDRNOTAVAIL") return "loopback is down in the hand's network namespace";
  return failure;
}
