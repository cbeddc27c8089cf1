/** What hands leave as output becomes files of their sessions: bounded, each change once, and told in the log. */

import { invalidField, isTendonError, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { mediaTypeOf } from "../../kit/media-type.ts";
import type {
  HandFile,
  OfferOutputsRequest,
  StoreOutputRequest,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { HandRecord } from "../store/hands.ts";
import type { HandDeps } from "./deps.ts";
import { outputRefusedEvent, outputStoredEvent } from "./hand-events.ts";
import { ownHand } from "./hand-mounts.ts";

type OutputDeps = Pick<HandDeps, "store" | "log">;

const MIB = 1024 * 1024;
export const MAX_OUTPUT_BYTES = 500 * MIB;
const MAX_OUTPUTS = 500;
const MAX_SESSION_BYTES = 4096 * MIB;
const MAX_PATH_BYTES = 1024;
const MAX_PARTS = 20;
/** Control and format characters, and the two separators that some programs take for line ends. */
const UNSEEN = /[\p{Cc}\p{Cf}\u2028\u2029]/u;

export async function offerOutputs(deps: OutputDeps, request: OfferOutputsRequest, handAgentId: string) {
  const { hand, sessionId } = await ownHand(deps, request, handAgentId);
  const stored = new Map(
    (await deps.store.files.outputs(sessionId)).map((file) => [file.filename, file.sha256]),
  );
  const usage = await deps.store.files.outputUsage(sessionId);
  const verdicts: { wanted: boolean; refused: string }[] = [];
  for (const file of request.files) {
    if (stored.get(file.path) === file.sha256) {
      verdicts.push({ wanted: false, refused: "" });
      continue;
    }
    const refused = problemOf(file, usage);
    if (refused === undefined) {
      usage.files += 1;
      usage.bytes += Number(file.sizeBytes);
    } else await tell(deps, sessionId, outputRefusedEvent(hand, file, refused));
    verdicts.push({ wanted: refused === undefined, refused: refused ?? "" });
  }
  return { verdicts };
}

export async function storeOutput(
  deps: OutputDeps,
  requests: AsyncIterable<StoreOutputRequest>,
  handAgentId: string,
) {
  const iterator = requests[Symbol.asyncIterator]();
  const first = await iterator.next();
  const kind = first.done ? undefined : first.value.kind;
  if (kind?.case !== "start") throw invalidField("start", "must be the first message");
  const file = kind.value.file!;
  const { hand, sessionId } = await ownHand(deps, kind.value, handAgentId);
  const refused = problemOf(file, await deps.store.files.outputUsage(sessionId));
  if (refused !== undefined) throw new TendonError("LIMIT_EXCEEDED", `${file.path}: ${refused}`);
  const fileId = newId("file");
  try {
    await storeFile(deps, { hand, sessionId, file, fileId }, iterator);
  } catch (error) {
    // A full workspace stays full: the log says so once.
    if (isTendonError(error, "LIMIT_EXCEEDED"))
      await tell(deps, sessionId, outputRefusedEvent(hand, file, error.message));
    throw error;
  }
  return {};
}

async function storeFile(
  { store, log }: OutputDeps,
  { hand, sessionId, file, fileId }: { hand: HandRecord; sessionId: string; file: HandFile; fileId: string },
  messages: AsyncIterator<StoreOutputRequest>,
): Promise<void> {
  const stored = await store.files.storeOutput({
    fileId,
    workspaceId: hand.workspaceId,
    sessionId,
    path: file.path,
    mimeType: mediaTypeOf(file.path),
    sha256: file.sha256,
    bytes: bytesOf(messages),
    maxBytes: Number(file.sizeBytes),
    event: outputStoredEvent(hand, file, fileId),
  });
  if (stored !== undefined) log.announce(stored.advance, stored.advance.added);
}

async function* bytesOf(messages: AsyncIterator<StoreOutputRequest>): AsyncGenerator<Uint8Array> {
  for (;;) {
    const next = await messages.next();
    const kind = next.done ? undefined : next.value.kind;
    if (kind?.case === "chunk") yield kind.value;
    else if (kind?.case === "end") return;
    else throw new TendonError("CANCELLED", "the stream broke off before the message that ends it");
  }
}

async function tell(
  { store, log }: OutputDeps,
  sessionId: string,
  event: ReturnType<typeof outputRefusedEvent>,
): Promise<void> {
  const advance = await store.files.noteOutput(sessionId, event);
  log.announce(advance, advance.added);
}

function problemOf(
  { path, sizeBytes }: HandFile,
  usage: { readonly files: number; readonly bytes: number },
): string | undefined {
  if (Buffer.byteLength(path) > MAX_PATH_BYTES) return `its path has more than ${MAX_PATH_BYTES} bytes`;
  if (UNSEEN.test(path)) return "its path holds control or format characters";
  const parts = path.split("/");
  if (parts.length > MAX_PARTS) return `its path has more than ${MAX_PARTS} parts`;
  if (parts.some((part) => part === "" || part === "." || part === "..")) return "its path is none";
  if (sizeBytes > MAX_OUTPUT_BYTES) return `it has more than ${MAX_OUTPUT_BYTES} bytes`;
  if (usage.files >= MAX_OUTPUTS) return `the session has its ${MAX_OUTPUTS} files of outputs`;
  if (usage.bytes + Number(sizeBytes) > MAX_SESSION_BYTES)
    return `the session's outputs would have more than ${MAX_SESSION_BYTES} bytes`;
  return undefined;
}
