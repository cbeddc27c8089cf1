/**
 * What hands need of their drivers: to be found again, to be watched while they live, and to be removed. A driver has a
 * bound for its answer, and what it fails at is put into words for the server.
 */
import { type Clock, within } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import { type Driver, type Hand, HandError } from "./drivers/driver.ts";
import { HandRefusal } from "./hand-refusal.ts";
import type { HandSlot, LiveHand } from "./hand-slot.ts";
import type { Mounts } from "./mounts/mounts.ts";
import { HandTools } from "./tools/hand-tools.ts";

export interface HandDriversOptions {
  readonly drivers: readonly Driver[];
  readonly clock: Clock;
  readonly log: Logger;
  /** Without it hands can have no mounts. */
  readonly mounts: Mounts | undefined;
  /** Notes a change that no command asked for, and passes it on. */
  readonly tell: (slot: HandSlot, detail: string) => void;
}

/** For a recovery before a call gives up waiting for it. */
const RECOVER_WITHIN_MS = 30_000;
/** For a driver to remove a hand before the server is told that it did not; what was begun goes on. */
const DISCARD_WITHIN_MS = 30_000;

export class HandDrivers {
  private readonly options: HandDriversOptions;

  constructor(options: HandDriversOptions) {
    this.options = options;
  }

  /** Throws HandError when the agent does not have it. */
  named(name: string): Driver {
    const driver = this.options.drivers.find((each) => each.name === name);
    if (driver === undefined) throw new HandError(`this hand agent has no driver ${JSON.stringify(name)}`);
    return driver;
  }

  /** The slot has this hand from now on, until it is lost or its processes are ended. */
  goLive(slot: HandSlot, hand: Hand, isNews: boolean): LiveHand {
    const { clock, mounts } = this.options;
    const { record } = slot;
    const tools = new HandTools(hand, clock, record.stallTimeoutMs);
    mounts?.open(hand, record);
    const live = { hand, tools, isNews };
    slot.live = live;
    this.watchForLoss(slot, hand);
    record.state = "ready";
    slot.detail = `ready, isolation: ${hand.isolation}`;
    return live;
  }

  /** Brings a hand back whose processes have ended. H-3 (see hands.ts). Throws HandRefusal. */
  async wakeUp(slot: HandSlot): Promise<LiveHand> {
    if (slot.live !== undefined) return slot.live;
    const { record } = slot;
    try {
      const found = await within(
        this.options.clock,
        RECOVER_WITHIN_MS,
        this.named(record.driver).recover(record.handle),
        () => new HandError(`it did not come back within ${RECOVER_WITHIN_MS} ms`),
      );
      if (found === "gone") {
        slot.lost = true;
        this.options.tell(slot, "its workspace is gone");
        throw new HandRefusal("HAND_LOST", "The hand's workspace is gone; the call was not started.");
      }
      return this.goLive(slot, found, found.resumed);
    } catch (error) {
      if (error instanceof HandRefusal) throw error;
      slot.detail = `not resumed: ${error instanceof HandError ? error.message : "the driver failed"}`;
      throw this.refusalOf(
        error,
        "HAND_NOT_READY",
        "The hand could not be resumed; the call was not started",
      );
    }
  }

  /** Throws when the hand, or one of its processes, may be left. */
  async discard(driver: Driver, handId: string): Promise<void> {
    const { clock, mounts } = this.options;
    await mounts?.forget(handId);
    const { left } = await within(
      clock,
      DISCARD_WITHIN_MS,
      driver.discard(handId),
      () =>
        new HandRefusal("DEADLINE_EXCEEDED", `the driver did not remove it within ${DISCARD_WITHIN_MS} ms`),
    );
    if (left.length === 0) return;
    const pids = left.map(({ pid }) => pid).join(", ");
    throw new HandRefusal("PROCESSES_LEFT", `the hand is removed, but processes did not end: ${pids}`);
  }

  /** What a driver's failure is to the server; one that is a bug is told to the log alone. */
  refusalOf(error: unknown, reason: string, text: string): HandRefusal {
    if (error instanceof HandRefusal) return error;
    if (error instanceof HandError) return new HandRefusal(reason, `${text}: ${error.message}`);
    this.options.log.error({ err: error }, `${text}: ${messageOf(error)}`);
    return new HandRefusal(reason, `${text}; its log says more`);
  }

  /** Somebody else may remove a workspace under a living hand (H2). */
  private watchForLoss(slot: HandSlot, hand: Hand): void {
    const { log, tell } = this.options;
    void hand.lost?.then((reason) => {
      if (slot.live?.hand !== hand) return;
      slot.live = undefined;
      slot.lost = true;
      log.error({ handId: hand.id, reason }, "a hand is lost");
      tell(slot, reason);
    });
  }
}
