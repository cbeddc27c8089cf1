/**
 * Copies into and out of hands. Bytes are passed on at the pace of the slower side and kept nowhere; the digests of both
 * ends are compared before anybody is told that a copy is whole. A copy that breaks is not tried again here: whoever
 * wants it starts it anew, which changes nothing that it should not.
 */
import { createHash, type Hash } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { invalidField, isTendonError, type Reason, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNul } from "../../kit/nul.ts";
import {
  StartTransferSchema,
  type TransferEnd,
  TransferEndSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type {
  CopyInRequest,
  CopyOutRequest,
  CopyOutResponseSchema,
  CopyTarget,
} from "../../proto/gen/tendon/v1/hand_service_pb.js";
import type { Principal } from "../ports/principal.ts";
import type { OpenTransfer, TransferPart } from "../ports/transfers.ts";
import type { HandRecord } from "../store/hands.ts";
import type { AgentLink, AgentLinks } from "./agent-link.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import { accessTo, type HandAccess, visibleHand } from "./hand-access.ts";
import { operatedEvent } from "./hand-events.ts";
import { linkOfHand } from "./hand-link.ts";
import { type Provisioner, provisionError } from "./provisioner.ts";

/** Copies whose callers this replica serves. */
const MAX_COPIES = 256;
/** How often a copy is begun anew whose agent went elsewhere before its first byte. */
const ATTEMPTS = 4;

export interface CopiesParts {
  readonly links: AgentLinks;
  readonly provisioner: Provisioner;
  readonly conclusions: Conclusions;
}

type Wish = Pick<CopyTarget, "handId" | "path" | "tar" | "lease" | "reason"> & {
  readonly mode: number;
  readonly intoHand: boolean;
};

export class Copies {
  private readonly deps: HandDeps;
  private readonly parts: CopiesParts;
  private running = 0;

  constructor(deps: HandDeps, parts: CopiesParts) {
    this.deps = deps;
    this.parts = parts;
  }

  async copyIn(requests: AsyncIterable<CopyInRequest>, principal: Principal, signal: AbortSignal) {
    const iterator = requests[Symbol.asyncIterator]();
    const first = await iterator.next();
    const kind = first.done ? undefined : first.value.kind;
    if (kind?.case !== "target") throw invalidField("target", "must be the first message");
    const { handId, path, tar, lease, reason, mode } = kind.value;
    if (tar && mode !== 0) throw invalidField("target.mode", "an archive holds the modes of its files");
    const wish: Wish = { handId, path, tar, lease, reason, mode, intoHand: true };
    const count = new Count();
    for await (const part of this.carry(wish, inputsOf(iterator, count), principal, signal)) {
      if (part.case === "end") return count.agreedWith(part.value);
    }
    throw broken();
  }

  async *copyOut(
    request: CopyOutRequest,
    principal: Principal,
    signal: AbortSignal,
  ): AsyncGenerator<MessageInitShape<typeof CopyOutResponseSchema>> {
    const { handId, path, tar, lease, reason } = request;
    const wish: Wish = { handId, path, tar, lease, reason, mode: 0, intoHand: false };
    const count = new Count();
    for await (const part of this.carry(wish, nothing(), principal, signal)) {
      if (part.case === "chunk") {
        count.add(part.value);
        yield { chunk: part.value };
        continue;
      }
      yield { end: count.agreedWith(part.value) };
      return;
    }
    throw broken();
  }

  private async *carry(
    wish: Wish,
    inputs: AsyncIterable<TransferPart>,
    principal: Principal,
    signal: AbortSignal,
  ): AsyncGenerator<TransferPart> {
    if (this.running >= MAX_COPIES) {
      throw new TendonError("LIMIT_EXCEEDED", `this server serves ${MAX_COPIES} copies; try again later`);
    }
    this.running += 1;
    const stalls = new StallWatch(this.deps, signal);
    try {
      const open = await this.open(wish, principal, stalls.signal);
      const stop = () => open.close();
      stalls.signal.addEventListener("abort", stop, { once: true });
      try {
        for await (const part of open.run(stalls.noting(inputs))) {
          stalls.progress();
          if (part.case === "end" && part.value.reason !== "") throw refusalOf(wish, part.value);
          yield part;
          stalls.progress();
        }
      } catch (error) {
        stalls.signal.throwIfAborted();
        throw error;
      } finally {
        stalls.signal.removeEventListener("abort", stop);
        open.close();
      }
    } finally {
      stalls.stop();
      this.running -= 1;
    }
  }

  /** Nothing of the caller's bytes is read before the agent has opened the copy; until then another way may be tried. */
  private async open(wish: Wish, principal: Principal, signal: AbortSignal): Promise<OpenTransfer> {
    refuseNul({ path: wish.path, reason: wish.reason }, "copy");
    const transferId = newId("request");
    for (let attempt = 1; ; attempt += 1) {
      const found = await visibleHand(this.deps.store.hands, wish.handId, principal);
      const access = accessTo(found, wish, principal);
      const { hand, link } = await this.reach(found, signal);
      // The log hears of an operator once, however often the way is tried.
      const begun = await this.begin(hand, wish, access, attempt === 1 ? transferId : undefined);
      if (begun !== undefined) {
        try {
          return await link.openTransfer(startOf(begun, wish, transferId), signal);
        } catch (error) {
          if (attempt >= ATTEMPTS || !isElsewhere(error)) throw error;
          await this.parts.provisioner.changed(this.deps.timing.lookAgainMs);
        }
      } else if (attempt >= ATTEMPTS) {
        throw new TendonError("HAND_NOT_READY", `hand "${wish.handId}" kept changing; try again`);
      }
    }
  }

  private async reach(
    found: HandRecord,
    signal: AbortSignal,
  ): Promise<{ hand: HandRecord; link: AgentLink }> {
    const { handId } = found;
    if (found.state === "released") throw new TendonError("HAND_RELEASED", `hand "${handId}" was released`);
    if (found.state === "lost")
      throw new TendonError("HAND_LOST", `hand "${handId}" is lost: ${found.stateDetail}`);
    const provisioned = await this.parts.provisioner.ensure(found);
    if (provisioned.kind === "failed") throw provisionError(provisioned);
    const { hand } = provisioned;
    const link = await linkOfHand(this.deps, this.parts, hand, signal);
    if (link !== undefined) return { hand, link };
    throw new TendonError("NO_HAND_AGENT", `the machine that hosts hand "${handId}" cannot be reached`);
  }

  private async begin(
    hand: HandRecord,
    { intoHand, path, tar }: Wish,
    { lease, operator }: HandAccess,
    executionId: string | undefined,
  ): Promise<HandRecord | undefined> {
    const event =
      operator === undefined || executionId === undefined
        ? undefined
        : operatedEvent(hand, {
            ...operator,
            executionId,
            name: intoHand ? "copy_in" : "copy_out",
            input: JSON.stringify({ path, tar }),
          });
    const change = await this.deps.store.hands.operate({ hand, lease, event });
    this.parts.conclusions.announce(change?.advance);
    return change?.hand;
  }
}

function startOf(hand: HandRecord, { path, tar, mode, intoHand }: Wish, transferId: string) {
  const { handId, ownerNumber } = hand;
  const facts = { transferId, handId, path, tar, mode, intoHand, ownerNumber: BigInt(ownerNumber) };
  return create(StartTransferSchema, facts);
}

function isElsewhere(error: unknown): boolean {
  return isTendonError(error, "UNAVAILABLE") || isTendonError(error, "NO_HAND_AGENT");
}

/** Ends well only after the caller's `end`, so that the agent never takes what has come for the whole. */
async function* inputsOf(requests: AsyncIterator<CopyInRequest>, count: Count): AsyncGenerator<TransferPart> {
  for (let next = await requests.next(); !next.done; next = await requests.next()) {
    const { kind } = next.value;
    if (kind.case === "end") {
      const { sizeBytes, sha256 } = count.total();
      if (kind.value.sizeBytes !== sizeBytes)
        throw invalidField("end.size_bytes", `${sizeBytes} bytes have come`);
      if (kind.value.sha256 !== "" && kind.value.sha256 !== sha256)
        throw invalidField("end.sha256", `the bytes that have come have the digest ${sha256}`);
      yield { case: "end", value: create(TransferEndSchema, { sizeBytes, sha256 }) };
      return;
    }
    if (kind.case !== "chunk") throw invalidField("target", "only the first message may be one");
    if (kind.value.length === 0) continue;
    count.add(kind.value);
    yield kind;
  }
  // A cancelled call may look like one that ended well.
  throw new TendonError("CANCELLED", "the stream ended without `end`; nothing was changed");
}

async function* nothing(): AsyncGenerator<TransferPart> {}

class Count {
  private readonly hash: Hash = createHash("sha256");
  private bytes = 0;

  add(chunk: Uint8Array): void {
    this.hash.update(chunk);
    this.bytes += chunk.length;
  }

  total(): { sizeBytes: bigint; sha256: string } {
    return { sizeBytes: BigInt(this.bytes), sha256: this.hash.copy().digest("hex") };
  }

  /** UNAVAILABLE when the agent speaks of other bytes than passed through here. */
  agreedWith({ sizeBytes, sha256 }: TransferEnd): { sizeBytes: bigint; sha256: string } {
    const here = this.total();
    if (here.sizeBytes !== sizeBytes || here.sha256 !== sha256) {
      throw new TendonError("UNAVAILABLE", "the hand agent speaks of other bytes than passed; copy it again");
    }
    return here;
  }
}

/** A copy in which nothing moves for too long is ended, whoever it is that does not go on. */
class StallWatch {
  readonly signal: AbortSignal;
  private readonly stall = new AbortController();
  private readonly stopTimer: () => void;
  private readonly now: () => number;
  private lastMs: number;

  constructor({ clock, timing }: Pick<HandDeps, "clock" | "timing">, caller: AbortSignal) {
    this.signal = AbortSignal.any([caller, this.stall.signal]);
    this.now = () => clock.monotonicMs();
    this.lastMs = this.now();
    const { copyStallMs } = timing;
    this.stopTimer = clock.every(copyStallMs / 4, () => {
      if (this.now() - this.lastMs < copyStallMs) return;
      const seconds = Math.round(copyStallMs / 1_000);
      this.stall.abort(new TendonError("DEADLINE_EXCEEDED", `nothing of the copy moved for ${seconds} s`));
    });
  }

  progress(): void {
    this.lastMs = this.now();
  }

  async *noting(inputs: AsyncIterable<TransferPart>): AsyncGenerator<TransferPart> {
    for await (const part of inputs) {
      this.progress();
      yield part;
    }
  }

  stop(): void {
    this.stopTimer();
  }
}

const PASSED_ON: ReadonlySet<string> = new Set<Reason>([
  "NOT_FOUND",
  "INVALID_FIELD",
  "LIMIT_EXCEEDED",
  "HAND_LOST",
  "HAND_RELEASED",
  "HAND_NOT_READY",
  "CANCELLED",
]);

/** What the agent says, in the contract's words. */
function refusalOf({ handId, path }: Wish, { reason, message }: TransferEnd): TendonError {
  const known: Reason = PASSED_ON.has(reason)
    ? (reason as Reason)
    : reason === "OWNER_CHANGED"
      ? "HAND_NOT_READY"
      : "UNAVAILABLE";
  const facts = known === "INVALID_FIELD" ? { field: "path" } : {};
  return new TendonError(known, message || `the copy failed (${reason})`, {
    part: "hand_agent",
    hand_id: handId,
    path,
    ...facts,
  });
}

function broken(): TendonError {
  return new TendonError("UNAVAILABLE", "the copy ended without a word; try again");
}
