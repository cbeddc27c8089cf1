/** What a session's hands have left as output, as far as a grader is shown it: read once, kept with the evaluation's start. */
import { TendonError } from "../../kit/errors.ts";
import { readTar } from "../../kit/tar/read-tar.ts";
import { TarError } from "../../kit/tar/tar-entry.ts";
import { type Hand, HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { livingHands } from "../brain-tools/session-hands.ts";
import type { Lease } from "../lease.ts";
import type { ServerClients } from "../server-clients.ts";

export interface HandOutputs {
  readonly files: readonly OutputFile[];
  /** What is missing, and why. */
  readonly note?: string;
}

export interface OutputFile {
  /** Below the directory of outputs; of another slot than the default one with its name before it. */
  readonly path: string;
  readonly bytes: number;
  /** Undefined for what is no text, or too much. */
  readonly text?: string;
}

export interface HandOutputsOptions {
  readonly server: ServerClients;
  readonly lease: Lease;
  /** That have, or had, a hand. */
  readonly slots: ReadonlySet<string>;
}

const OUTPUTS_DIR = "/mnt/session/outputs";
const MAX_HANDS = 8;
const MAX_FILES = 200;
const MAX_FILE_TEXT_BYTES = 64 * 1024;
const MAX_TEXT_BYTES = 256 * 1024;
/** Of one hand, names and bytes that are not shown included. */
const MAX_READ_BYTES = 64 * 1024 * 1024;
const WITHIN_MS = 60_000;
/** Hands of environments that have no such directory. */
const NOTHING_THERE = new Set(["NOT_FOUND", "INVALID_FIELD", "HAND_RELEASED"]);

/** Rejects only with the signal's reason; what cannot be read is named in the note. */
export async function handOutputs(
  { server, lease, slots }: HandOutputsOptions,
  signal: AbortSignal,
): Promise<HandOutputs> {
  const gathered = new Gathered();
  if (slots.size === 0) return gathered.outputs();
  try {
    const { sessionId } = lease;
    const hands = (await livingHands({ server, sessionId }, signal)).filter(({ state }) => isThere(state));
    for (const hand of hands.slice(0, MAX_HANDS)) await readHand({ server, lease }, hand, gathered, signal);
  } catch (error) {
    signal.throwIfAborted();
    if (!(error instanceof TendonError || error instanceof TarError)) throw error;
    gathered.missed(`the outputs could not be read: ${error.message}`);
  }
  return gathered.outputs();
}

function isThere(state: HandState): boolean {
  return state === HandState.READY || state === HandState.PARKED;
}

async function readHand(
  { server, lease }: Pick<HandOutputsOptions, "server" | "lease">,
  hand: Hand,
  gathered: Gathered,
  signal: AbortSignal,
): Promise<void> {
  const prefix = hand.slot === "" ? "" : `${hand.slot}: `;
  const request = { handId: hand.id, path: OUTPUTS_DIR, tar: true, lease: lease.proof };
  const answers = server.hands.copyOut(request, { signal, deadlineMs: WITHIN_MS });
  let bytes = 0;
  async function* archive(): AsyncGenerator<Uint8Array> {
    for await (const { chunk } of answers) {
      bytes += chunk.length;
      if (chunk.length > 0) yield chunk;
    }
  }
  try {
    for await (const { entry, content } of readTar(archive())) {
      if (entry.type === "file")
        await gathered.add(`${prefix}${entry.name.replace(/^\.\//, "")}`, entry.size, content);
      if (gathered.isFull || bytes > MAX_READ_BYTES) {
        gathered.missed(`${prefix}there are more files, or larger ones, than are shown`);
        return;
      }
    }
  } catch (error) {
    if (error instanceof TendonError && NOTHING_THERE.has(error.reason)) return;
    throw error;
  }
}

class Gathered {
  private readonly files: OutputFile[] = [];
  private note: string | undefined;
  private textBytes = 0;

  get isFull(): boolean {
    return this.files.length >= MAX_FILES;
  }

  async add(path: string, bytes: number, content: AsyncIterable<Uint8Array>): Promise<void> {
    const isShown = bytes <= MAX_FILE_TEXT_BYTES && this.textBytes + bytes <= MAX_TEXT_BYTES;
    const text = isShown ? await textOf(content) : undefined;
    if (text !== undefined) this.textBytes += bytes;
    this.files.push({ path, bytes, ...(text !== undefined && { text }) });
  }

  missed(why: string): void {
    this.note ??= why;
  }

  outputs(): HandOutputs {
    const files = this.files.toSorted((a, b) => (a.path < b.path ? -1 : 1));
    return { files, ...(this.note !== undefined && { note: this.note }) };
  }
}

/** Undefined for bytes that are no text. */
async function textOf(content: AsyncIterable<Uint8Array>): Promise<string | undefined> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of content) chunks.push(chunk);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(Buffer.concat(chunks));
    return text.includes("\0") ? undefined : text;
  } catch {
    return undefined;
  }
}
