/**
 * What a hand's processes left as output, offered to the server: what is new or changed since the last time, and only regular
 * files. A file that changes while it is read is not stored, and found changed the next time.
 */
import { createHash } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { isTendonError } from "../../kit/errors.ts";
import type {
  OfferOutputsResponse,
  StoreOutputRequestSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { FileError, FileStat, HandMounts } from "../drivers/driver.ts";
import { OUTPUTS_DIR } from "./mount-config.ts";

/** By path, what it was when the server had its say. */
export type OutputState = Record<string, string>;

export interface OutputFile {
  readonly path: string;
  readonly sha256: string;
  readonly sizeBytes: bigint;
}

export type OutputPart = MessageInitShape<typeof StoreOutputRequestSchema>;

export interface OutputTarget {
  offer(files: readonly OutputFile[], signal: AbortSignal): Promise<OfferOutputsResponse>;
  store(file: OutputFile, bytes: AsyncIterable<Uint8Array>, signal: AbortSignal): Promise<void>;
}

/** Of files that are looked at; more are left for the next time. */
const MAX_LOOKED_AT = 10_000;
const MAX_OFFERED = 500;
const CHUNK_BYTES = 512 * 1024;
/** What is larger is refused for that alone: nobody reads it to say what is in it. */
const MAX_READ_BYTES = 500 * 1024 * 1024;
const NOT_READ = "0".repeat(64);

/** Rejects when the server cannot be reached. */
export async function offerOutputs(
  mounts: HandMounts,
  state: OutputState,
  target: OutputTarget,
  { signal, save }: { signal: AbortSignal; save: () => Promise<void> },
): Promise<void> {
  const found = await marksOf(mounts, signal);
  for (const path of Object.keys(state)) if (!found.has(path)) delete state[path];
  const changed = [...found].filter(([path, mark]) => state[path] !== mark).slice(0, MAX_OFFERED);
  const offered: { file: OutputFile; mark: string }[] = [];
  for (const [path, mark] of changed) {
    const file = await digested(mounts, path, signal);
    if (file !== undefined) offered.push({ file, mark });
  }
  if (offered.length === 0) return;
  const { verdicts } = await target.offer(
    offered.map(({ file }) => file),
    signal,
  );
  for (const [at, { file, mark }] of offered.entries()) {
    const isDone = verdicts[at]?.wanted !== true || (await store(mounts, target, file, signal));
    if (isDone) state[file.path] = mark;
    await save();
  }
}

/** False for one that is another by now. */
async function store(
  mounts: HandMounts,
  target: OutputTarget,
  file: OutputFile,
  signal: AbortSignal,
): Promise<boolean> {
  try {
    await target.store(
      file,
      pieces(mounts.files.readFile(`${OUTPUTS_DIR}/${file.path}`, { signal })),
      signal,
    );
    return true;
  } catch (error) {
    // A full workspace has said so in the log.
    if (isTendonError(error, "LIMIT_EXCEEDED")) return true;
    const isOther = isTendonError(error, "INVALID_FIELD") || isTendonError(error, "MESSAGE_TOO_LARGE");
    if (isOther || (error as FileError).code === "not_found") return false;
    throw error;
  }
}

async function marksOf({ files }: HandMounts, signal: AbortSignal): Promise<Map<string, string>> {
  const marks = new Map<string, string>();
  for await (const { path, type } of files.walk(OUTPUTS_DIR, { signal })) {
    if (type !== "file") continue;
    if (marks.size >= MAX_LOOKED_AT) break;
    const stat = await statOf(files, path);
    if (stat?.type === "file") marks.set(path.slice(OUTPUTS_DIR.length + 1), `${stat.size}:${stat.mtimeMs}`);
  }
  return marks;
}

function statOf(files: HandMounts["files"], path: string): Promise<FileStat | undefined> {
  return files.stat(path).catch((error) => {
    if (["not_found", "not_a_directory"].includes((error as FileError).code)) return undefined;
    throw error;
  });
}

async function digested(
  { files }: HandMounts,
  path: string,
  signal: AbortSignal,
): Promise<OutputFile | undefined> {
  const hash = createHash("sha256");
  let bytes = 0n;
  try {
    const { size } = await files.stat(`${OUTPUTS_DIR}/${path}`);
    if (size > MAX_READ_BYTES) return { path, sha256: NOT_READ, sizeBytes: BigInt(size) };
    for await (const chunk of files.readFile(`${OUTPUTS_DIR}/${path}`, { signal })) {
      hash.update(chunk);
      bytes += BigInt(chunk.byteLength);
    }
  } catch (error) {
    if ((error as FileError).code === "not_found") return undefined;
    throw error;
  }
  return { path, sha256: hash.digest("hex"), sizeBytes: bytes };
}

/** Fewer messages than the file system has pieces. */
async function* pieces(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let held: Uint8Array[] = [];
  let heldBytes = 0;
  for await (const chunk of bytes) {
    held.push(chunk);
    heldBytes += chunk.byteLength;
    if (heldBytes < CHUNK_BYTES) continue;
    yield Buffer.concat(held);
    held = [];
    heldBytes = 0;
  }
  if (heldBytes > 0) yield Buffer.concat(held);
}
