/** One copy into or out of a hand, streamed: a single file, or a tree as a tar archive. */
import { createHash, type Hash } from "node:crypto";
import { resolve } from "node:path";
import type { Logger } from "../kit/log.ts";
import type {
  StartTransfer,
  StreamTransferResponse,
  TransferEnd,
} from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { copyTreeIn } from "./copy-tree-in.ts";
import { packTree } from "./copy-tree-out.ts";
import type { Hand } from "./drivers/driver.ts";
import { HandRefusal } from "./hand-refusal.ts";
import type { Hands } from "./hands.ts";

/** The copy's stream to the server. */
export interface TransferWire {
  /** Resolves when there is room for more. */
  send(chunk: Uint8Array): Promise<void>;
  readonly responses: AsyncIterator<StreamTransferResponse>;
}

export interface TransferDeps {
  readonly hands: Pick<Hands, "use">;
  /** Ids of the copies that run now. */
  readonly running: ReadonlySet<string>;
  readonly log: Logger;
}

/** Small pieces are sent together: every message costs the way over two servers. */
const SEND_BYTES = 256 * 1024;

/** Copies, and says how much it was. Throws what `copyRefusal` has words for. */
export async function transfer(
  deps: TransferDeps,
  wire: TransferWire,
  command: StartTransfer,
  signal: AbortSignal,
): Promise<{ sizeBytes: bigint; sha256: string }> {
  const owner = command.ownerNumber === 0n ? undefined : command.ownerNumber;
  const { hand } = await deps.hands.use(command.handId, owner);
  const path = resolve(hand.workdir, command.path);
  const count = new Count();
  if (command.intoHand) await copyIn(deps, hand, { wire, command, path, count, signal });
  else await copyOut(hand, { wire, command, path, count, signal });
  return count.total();
}

interface Copy {
  readonly wire: TransferWire;
  readonly command: StartTransfer;
  readonly path: string;
  readonly count: Count;
  readonly signal: AbortSignal;
}

async function copyIn(
  { running, log }: TransferDeps,
  hand: Hand,
  { wire, command, path, count, signal }: Copy,
): Promise<void> {
  const incoming = new Incoming(wire.responses, count);
  if (command.tar) {
    const tree = { hand, path, id: command.transferId, running, signal, log };
    await copyTreeIn(tree, incoming.bytes(), () => incoming.assertWhole());
    return;
  }
  const { mode } = command;
  const options = mode === 0 ? { signal } : { mode, signal };
  await hand.writeFile(path, incoming.bytes(), options);
  // The primitive keeps the mode of a file that was there.
  if (mode !== 0) await hand.setMode?.(path, mode);
}

/**
 * What the server sends. Fails when the stream ends without `end`, or when `end` speaks of other bytes than came, so that
 * half a file never replaces a whole one. The stream is left open: the answer goes out on it.
 */
class Incoming {
  private readonly responses: AsyncIterator<StreamTransferResponse>;
  private readonly count: Count;
  private isWhole = false;

  constructor(responses: AsyncIterator<StreamTransferResponse>, count: Count) {
    this.responses = responses;
    this.count = count;
  }

  async *bytes(): AsyncGenerator<Uint8Array> {
    for (let next = await this.responses.next(); !next.done; next = await this.responses.next()) {
      const { kind } = next.value;
      if (kind.case === "chunk") {
        this.count.add(kind.value);
        yield kind.value;
      } else if (kind.case === "end") {
        this.finish(kind.value);
        return;
      }
    }
    throw new HandRefusal("CANCELLED", "the sender went away");
  }

  assertWhole(): void {
    if (!this.isWhole) throw new HandRefusal("CANCELLED", "the sender has not said that this was all");
  }

  private finish({ reason, sizeBytes, sha256 }: TransferEnd): void {
    if (reason !== "") throw new HandRefusal("CANCELLED", "the sender gave up");
    const come = this.count.total();
    if (sha256 !== "" && (sha256 !== come.sha256 || sizeBytes !== come.sizeBytes))
      throw new HandRefusal("UNAVAILABLE", "other bytes have come than were sent; nothing was changed");
    this.isWhole = true;
  }
}

async function copyOut(hand: Hand, { wire, command, path, count, signal }: Copy): Promise<void> {
  const bytes = command.tar ? packTree(hand, path, signal) : hand.readFile(path, { signal });
  for await (const chunk of inLargePieces(bytes)) {
    count.add(chunk);
    await wire.send(chunk);
  }
}

async function* inLargePieces(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let held: Uint8Array[] = [];
  let heldBytes = 0;
  for await (const piece of bytes) {
    if (piece.length === 0) continue;
    held.push(piece);
    heldBytes += piece.length;
    if (heldBytes < SEND_BYTES) continue;
    yield Buffer.concat(held);
    held = [];
    heldBytes = 0;
  }
  if (heldBytes > 0) yield Buffer.concat(held);
}

/** Bytes and their digest so far. */
class Count {
  private readonly hash: Hash = createHash("sha256");
  private bytes = 0;

  add(chunk: Uint8Array): void {
    this.hash.update(chunk);
    this.bytes += chunk.byteLength;
  }

  total(): { sizeBytes: bigint; sha256: string } {
    return { sizeBytes: BigInt(this.bytes), sha256: this.hash.copy().digest("hex") };
  }
}
