/** One copy into or out of a hand: a single file, streamed. */
import { createHash } from "node:crypto";
import { resolve } from "node:path";
import type { Logger } from "../kit/log.ts";
import type { BidiCall } from "../kit/rpc/client.ts";
import type {
  StartTransfer,
  StreamTransferRequestSchema,
  StreamTransferResponse,
  StreamTransferResponseSchema,
} from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { FileError, type Hand } from "./drivers/driver.ts";
import { HandRefusal, type Hands } from "./hands.ts";
import type { Tunnel } from "./tunnel/connection.ts";

type TransferCall = BidiCall<typeof StreamTransferRequestSchema, typeof StreamTransferResponseSchema>;

/** Never rejects: what goes wrong is told on the stream, or the stream is gone. */
export async function runTransfer(
  { hands, tunnel, log }: { hands: Hands; tunnel: Tunnel; log: Logger },
  command: StartTransfer,
): Promise<void> {
  try {
    const call = tunnel.client.streamTransfer({ signal: tunnel.signal });
    await call.send({ kind: { case: "transferId", value: command.transferId } });
    const end = await transfer(hands, call, command, tunnel.signal).catch((error) => ({
      ...refusalOf(error, log),
      sizeBytes: 0n,
      sha256: "",
    }));
    await call.send({ kind: { case: "end", value: end } });
    call.end();
  } catch (error) {
    log.warn({ err: error, transfer: command.transferId }, "a copy broke off");
  }
}

async function transfer(hands: Hands, call: TransferCall, command: StartTransfer, signal: AbortSignal) {
  if (command.tar)
    throw new HandRefusal("NOT_IMPLEMENTED", "this build of the hand agent copies single files only");
  const { hand } = await hands.use(command.handId, undefined);
  const path = resolve(hand.workdir, command.path);
  const hash = createHash("sha256");
  const sizeBytes = command.intoHand
    ? await copyIn(hand, call, path, hash.update.bind(hash))
    : await copyOut(hand, call, path, hash.update.bind(hash), signal);
  return { reason: "", message: "", sizeBytes: BigInt(sizeBytes), sha256: hash.digest("hex") };
}

async function copyIn(
  hand: Hand,
  call: TransferCall,
  path: string,
  note: (chunk: Uint8Array) => void,
): Promise<number> {
  const { bytes } = await hand.writeFile(path, chunksOf(call.responses, note));
  return bytes;
}

/**
 * Fails when the stream ends without `end`, so that half a file never replaces a whole one. The stream is left open:
 * the answer goes out on it.
 */
async function* chunksOf(
  responses: AsyncIterable<StreamTransferResponse>,
  note: (chunk: Uint8Array) => void,
) {
  const reader = responses[Symbol.asyncIterator]();
  for (let next = await reader.next(); !next.done; next = await reader.next()) {
    const { kind } = next.value;
    if (kind.case === "chunk") {
      note(kind.value);
      yield kind.value;
    } else if (kind.case === "end") {
      if (kind.value.reason !== "") throw new HandRefusal("CANCELLED", "the sender gave up");
      return;
    }
  }
  throw new HandRefusal("CANCELLED", "the sender went away");
}

async function copyOut(
  hand: Hand,
  call: TransferCall,
  path: string,
  note: (chunk: Uint8Array) => void,
  signal: AbortSignal,
): Promise<number> {
  let bytes = 0;
  for await (const chunk of hand.readFile(path, { signal })) {
    note(chunk);
    bytes += chunk.byteLength;
    await call.send({ kind: { case: "chunk", value: chunk } });
  }
  return bytes;
}

function refusalOf(error: unknown, log: Logger): { reason: string; message: string } {
  if (error instanceof HandRefusal) return { reason: error.reason, message: error.message };
  if (error instanceof FileError) {
    const reason = error.code === "not_found" ? "NOT_FOUND" : "INVALID_FIELD";
    return { reason, message: `${error.path}: ${error.message}`.slice(0, 4_000) };
  }
  log.error({ err: error }, "a copy failed");
  return { reason: "INTERNAL", message: "the hand agent failed; its log says more" };
}
