/**
 * All copies of this agent. A copy lives as long as its stream: one that breaks off has changed nothing and is started
 * anew by whoever wants it. While a hand has a copy it is not parked; a copy of an owner before ends (design H6).
 */
import { type Clock, within } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import type { StartTransfer } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { copyRefusal } from "./copy-error.ts";
import { HandRefusal } from "./hand-refusal.ts";
import type { Hands } from "./hands.ts";
import { type TransferWire, transfer } from "./transfer.ts";
import type { Tunnel } from "./tunnel/connection.ts";

const MAX_AT_ONCE = 64;
/** For a driver to remove what a copy that ended early had unpacked. */
const CLEAN_UP_WITHIN_MS = 30_000;
/** Ids are parts of file names. */
const TRANSFER_ID = /^[A-Za-z0-9_-]{1,128}$/;

interface Running {
  readonly handId: string;
  readonly ownerNumber: bigint;
  readonly stop: AbortController;
  readonly over: Promise<void>;
}

export class Transfers {
  private readonly hands: Hands;
  private readonly clock: Clock;
  private readonly log: Logger;
  private readonly running = new Map<string, Running>();

  constructor(hands: Hands, clock: Clock, log: Logger) {
    this.hands = hands;
    this.clock = clock;
    this.log = log;
  }

  /** What goes wrong is told on the copy's stream, or the stream is gone. */
  start(tunnel: Tunnel, command: StartTransfer): void {
    const { transferId, handId, ownerNumber } = command;
    if (this.running.has(transferId)) return;
    const stop = new AbortController();
    const isFull = this.running.size >= MAX_AT_ONCE;
    const refusal = isFull
      ? new HandRefusal("LIMIT_EXCEEDED", `the hand agent has ${MAX_AT_ONCE} copies running; try again later`)
      : undefined;
    const over = this.run(tunnel, command, stop.signal, refusal)
      .catch((error) => this.log.info({ transfer: transferId, error: messageOf(error) }, "a copy broke off"))
      .finally(() => this.running.delete(transferId));
    if (!isFull) this.running.set(transferId, { handId, ownerNumber, stop, over });
  }

  isRunning(handId: string): boolean {
    return [...this.running.values()].some((each) => each.handId === handId);
  }

  /** Ends the hand's copies, of all owners or of those before `ownerNumber`, and resolves when they have ended. */
  async stopAll(handId: string, why: HandRefusal, ownerNumber?: bigint): Promise<void> {
    const affected = [...this.running.values()].filter(
      (each) => each.handId === handId && (ownerNumber === undefined || each.ownerNumber < ownerNumber),
    );
    for (const { stop } of affected) stop.abort(why);
    await Promise.all(affected.map(({ over }) => over));
  }

  /** The agent stops: copies end, and nothing of them is left. */
  async stop(): Promise<void> {
    const all = [...this.running.values()];
    for (const { stop } of all) stop.abort(new HandRefusal("UNAVAILABLE", "the hand agent is stopping"));
    await Promise.all(all.map(({ over }) => over));
  }

  private async run(
    tunnel: Tunnel,
    command: StartTransfer,
    stop: AbortSignal,
    refusal: HandRefusal | undefined,
  ): Promise<void> {
    const call = tunnel.client.streamTransfer({ signal: tunnel.signal });
    let copying: Promise<unknown> = Promise.resolve();
    try {
      await call.send({ kind: { case: "transferId", value: command.transferId } });
      const wire: TransferWire = {
        send: (chunk) => call.send({ kind: { case: "chunk", value: chunk } }),
        responses: call.responses[Symbol.asyncIterator](),
      };
      const signal = AbortSignal.any([tunnel.signal, stop]);
      const done = this.begin(wire, command, signal, refusal);
      copying = done.catch(() => {});
      await call.send({ kind: { case: "end", value: await this.endOf(done, signal) } });
      call.end();
      // The stream is over once the server has heard that; what it may still send is passed over.
      while (!(await wire.responses.next()).done);
    } finally {
      call.cancel();
      // What it had unpacked is removed by now, unless the driver hangs.
      await within(
        this.clock,
        CLEAN_UP_WITHIN_MS,
        copying,
        () => new Error("what a copy left is not removed"),
      );
    }
  }

  private async begin(
    wire: TransferWire,
    command: StartTransfer,
    signal: AbortSignal,
    refusal: HandRefusal | undefined,
  ) {
    if (refusal !== undefined) throw refusal;
    if (!TRANSFER_ID.test(command.transferId)) throw new HandRefusal("INVALID_FIELD", "not an id of a copy");
    const running = new Set(this.running.keys());
    return transfer({ hands: this.hands, running, log: this.log }, wire, command, signal);
  }

  private async endOf(done: ReturnType<typeof transfer>, signal: AbortSignal) {
    try {
      return { reason: "", message: "", ...(await orAborted(done, signal)) };
    } catch (error) {
      const why = signal.aborted && signal.reason instanceof HandRefusal ? signal.reason : error;
      return { ...copyRefusal(why, this.log), sizeBytes: 0n, sha256: "" };
    }
  }
}

/** A copy that waits for bytes which do not come ends all the same. */
async function orAborted<T>(done: Promise<T>, signal: AbortSignal): Promise<T> {
  let stop = () => {};
  const aborted = new Promise<never>((_, reject) => {
    const onAbort = () => reject(signal.reason);
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
    stop = () => signal.removeEventListener("abort", onAbort);
  });
  done.catch(() => {});
  try {
    return await Promise.race([done, aborted]);
  } finally {
    stop();
  }
}
