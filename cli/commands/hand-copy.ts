/** `tendon hand cp`: files and folders into a hand and out of it. */
import { createHash } from "node:crypto";
import { lstat, stat } from "node:fs/promises";
import { basename, join, posix } from "node:path";
import type { Command } from "commander";
import { StartupError } from "../../kit/program.ts";
import { TarError } from "../../kit/tar/tar-entry.ts";
import { type CommandContext, EXIT_FAILED, EXIT_USAGE, onAction } from "../command.ts";
import type { Api } from "../connect.ts";
import { fileChunks, packFolder, unpackTo } from "../local-tree.ts";

interface CopyOptions {
  reason?: string;
}

interface Copied {
  readonly from: string;
  readonly to: string;
  readonly bytes: number;
  readonly sha256: string;
}

/** Pieces of the contract are at most 1 MiB. */
const REMOTE = /^(hand_[A-Za-z0-9]+):(.*)$/s;

const MAX_TOLD = 20;

export function addHandCopy(hand: Command): void {
  const command = hand
    .command("cp <from> <to>")
    .description("copy a file or a folder into a hand, or out of one; one of the two is HAND:PATH")
    .option("--reason <text>", "why you work on a session's hand; stands in its log")
    .addHelpText(
      "after",
      `
Paths in the hand begin at its working directory. A folder that is copied in is laid over what is there; a copy
that breaks off changes nothing, and can be made again. Links that lead out of a folder that is copied out are left
out, with a note.

Examples:
  tendon hand cp data.csv hand_01…:
  tendon hand cp ./src hand_01…:src
  tendon hand cp hand_01…:out/report.pdf .`,
    );
  onAction<CopyOptions>(command, async (context) => {
    const { args, output } = context;
    const copied = await copy(context, String(args[0]), String(args[1]));
    output.value(copied, () => `${copied.from} -> ${copied.to}, ${copied.bytes} bytes`);
  });
}

async function copy(context: CommandContext<CopyOptions>, from: string, to: string): Promise<Copied> {
  const { api, options } = context;
  const [source, target] = [REMOTE.exec(from), REMOTE.exec(to)];
  const reason = options.reason ?? "";
  if (source === null && target !== null) return copyIn(api, from, target[1]!, target[2]!, reason);
  if (source !== null && target === null) return copyOut(context, source[1]!, source[2]!, to);
  throw new StartupError(
    "one of the two names a place in a hand, as HAND:PATH, the other one a place here",
    EXIT_USAGE,
  );
}

async function copyIn(api: Api, from: string, handId: string, path: string, reason: string): Promise<Copied> {
  const found = await stat(from).catch(() => {
    throw new StartupError(`there is no ${from}`, EXIT_USAGE);
  });
  const tar = found.isDirectory();
  if (!tar && !found.isFile()) throw new StartupError(`${from} is no file and no folder`, EXIT_USAGE);
  // As with cp: what ends with "/", or is the working directory, is where it goes into.
  const to = path === "" || path.endsWith("/") ? posix.join(path, basename(from)) : path;
  const mode = tar ? 0 : found.mode & 0o777;
  const call = api.hands.copyIn();
  const hash = createHash("sha256");
  let bytes = 0;
  try {
    await call.send({ kind: { case: "target", value: { handId, path: to, tar, mode, reason } } });
    for await (const chunk of tar ? packFolder(from) : fileChunks(from)) {
      hash.update(chunk);
      bytes += chunk.length;
      await call.send({ kind: { case: "chunk", value: chunk } });
    }
    const end = { sizeBytes: BigInt(bytes), sha256: hash.copy().digest("hex") };
    await call.send({ kind: { case: "end", value: end } });
  } catch (error) {
    // The call's own end says why; what failed here ends it.
    call.cancel();
    await call.end().catch((ended: unknown) => {
      throw isCancelled(ended) ? error : ended;
    });
  }
  await call.end();
  return { from, to: `${handId}:${to}`, bytes, sha256: hash.digest("hex") };
}

async function copyOut(
  { api, options, output }: CommandContext<CopyOptions>,
  handId: string,
  path: string,
  to: string,
): Promise<Copied> {
  const reason = options.reason ?? "";
  const name = posix.basename(posix.resolve("/", path)) || handId;
  const isFolder = await lstat(to).then(
    (found) => found.isDirectory(),
    () => false,
  );
  const target = isFolder || to.endsWith("/") ? join(to, name) : to;
  await assertFree(target);
  const hash = createHash("sha256");
  let bytes = 0;
  async function* received(): AsyncGenerator<Uint8Array> {
    for await (const { chunk, end } of api.hands.copyOut({ handId, path: path || ".", tar: true, reason })) {
      hash.update(chunk);
      bytes += chunk.length;
      if (chunk.length > 0) yield chunk;
      if (end === undefined) continue;
      if (end.sha256 !== hash.copy().digest("hex"))
        throw new StartupError("other bytes came than were sent; copy it again");
      return;
    }
    throw new StartupError("the copy was cut off; copy it again");
  }
  const leftOut = new LeftOut(output.note);
  await unpackTo(target, received(), leftOut.add).catch((error: unknown) => {
    throw error instanceof TarError ? new StartupError(error.message, EXIT_FAILED) : error;
  });
  leftOut.end();
  return { from: `${handId}:${path}`, to: target, bytes, sha256: hash.digest("hex") };
}

/** Says what a copy has not brought along; a tree may be full of such links. */
class LeftOut {
  private count = 0;
  private readonly note: (text: string) => void;

  constructor(note: (text: string) => void) {
    this.note = note;
  }

  readonly add = (why: string): void => {
    this.count += 1;
    if (this.count <= MAX_TOLD) this.note(`left out: ${why}`);
  };

  end(): void {
    if (this.count > MAX_TOLD) this.note(`left out: ${this.count - MAX_TOLD} more such links`);
  }
}

async function assertFree(target: string): Promise<void> {
  const isThere = await lstat(target).then(
    () => true,
    () => false,
  );
  if (isThere)
    throw new StartupError(`${target} is there already; remove it, or name another place`, EXIT_USAGE);
}

function isCancelled(error: unknown): boolean {
  return (error as { reason?: unknown }).reason === "CANCELLED";
}
