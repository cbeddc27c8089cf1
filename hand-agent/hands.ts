/**
 * The hands of this agent: made, found again, parked and destroyed as the server says.
 *
 * H-1 One hand per id, however often it is asked for; commands about one hand wait for each other.
 * H-2 A hand is noted on disk before it is made, so an agent that dies half-way removes the rest at its next start.
 * H-3 A hand that may still be there is never reported lost: "lost" needs a driver that says "gone".
 * H-4 The number of an owner only grows; a call of an older one is refused (design H6).
 */
import { type Clock, within } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import { failpoint } from "../kit/failpoint.ts";
import type { Logger } from "../kit/log.ts";
import type { ProvisionCommand } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { type Driver, type Hand, HandError, type HandSpec, type ProcessInfo } from "./drivers/driver.ts";
import { HandDrivers } from "./hand-drivers.ts";
import { HandRefusal } from "./hand-refusal.ts";
import { giveResources, noStoredFiles, type ReadStoredFile } from "./hand-resources.ts";
import {
  type HandSlot,
  type HandStatus,
  type LiveHand,
  newRecord,
  newSlot,
  raiseOwner,
  statusOf,
} from "./hand-slot.ts";
import { handSpecOf, hasGit } from "./hand-spec.ts";
import { type HandRecord, HandsFile } from "./hands-file.ts";
import { fillMounts, type Mounts } from "./mounts/mounts.ts";
import { ProvisionTurns } from "./provision-turns.ts";
import type { RepositoryOutcome } from "./repositories/outcome.ts";
import type { Repositories } from "./repositories/repositories.ts";
import { giveTrust } from "./trust/trust-files.ts";
import { UnownedHandMarks } from "./unowned-hands.ts";

export interface HandsOptions {
  dataDir: string;
  drivers: readonly Driver[];
  /** The installation that the agent belongs to now. */
  installationId(): string;
  capacity: number;
  /** Hands of a driver that are made at once; not set: as each driver says. */
  provisionsAtOnce?: number | undefined;
  clock: Clock;
  log: Logger;
  reaperPeriodMs?: number;
  /** Without it hands can be given no stored files. */
  readStored?: ReadStoredFile;
  /** Without it hands can have no mounts. */
  mounts?: Mounts;
  /** Without it hands can have no repositories. */
  repositories?: Repositories;
}

const STOPPING = "the hand agent is stopping";
const NOT_ITS_OWN = "The hand belongs to another session now; the call was not started.";
const RECOVER_AT_ONCE = 8;
const DEFAULT_PROVISION_TIMEOUT_MS = 60_000;
/** Of the time that is left for a hand, so that one whose repositories are too large is there without them. */
const SHARE_FOR_REPOSITORIES = 0.75;
/** For a driver to end a hand's processes when the agent stops; drivers end them within 3 s. */
const STOP_WITHIN_MS = 5_000;

export class Hands {
  private readonly options: HandsOptions;
  private readonly file: HandsFile;
  private readonly drivers: HandDrivers;
  private readonly slots = new Map<string, HandSlot>();
  private readonly marks: UnownedHandMarks;
  private readonly turns: ProvisionTurns;
  private draining = false;
  private readonly stopper = new AbortController();
  /** Told of changes that no command asked for. */
  onChange: (status: HandStatus) => void = () => {};

  constructor(options: HandsOptions) {
    this.options = options;
    this.file = new HandsFile(options.dataDir);
    const { drivers, clock, log, mounts } = options;
    this.drivers = new HandDrivers({
      drivers,
      clock,
      log,
      mounts,
      tell: (slot, detail) => this.tell(slot, detail),
    });
    this.marks = new UnownedHandMarks(options.clock, options.reaperPeriodMs);
    this.turns = new ProvisionTurns(options.provisionsAtOnce);
  }

  /** Finds the hands of an earlier life: their processes have ended when this resolves, their files are there. */
  async recover(): Promise<void> {
    for (const record of await this.file.load()) this.slots.set(record.handId, newSlot(record));
    const todo = [...this.slots.values()];
    const work = async () => {
      for (let slot = todo.pop(); slot; slot = todo.pop()) await this.recoverAtStart(slot);
    };
    await Promise.all(Array.from({ length: RECOVER_AT_ONCE }, work));
    await this.noteStrays();
    await this.save();
  }

  statuses(): HandStatus[] {
    return [...this.slots.values()].map(statusOf);
  }

  /** Processes that ended calls left running in this hand. */
  async leftProcesses(handId: string): Promise<ProcessInfo[]> {
    return (await this.slots.get(handId)?.live?.hand.callProcesses()) ?? [];
  }

  /** What became of its repositories, in the order of its resources. */
  repositories(handId: string): readonly RepositoryOutcome[] {
    return this.slots.get(handId)?.record.repositories ?? [];
  }

  status(handId: string): HandStatus | undefined {
    const slot = this.slots.get(handId);
    return slot === undefined ? undefined : statusOf(slot);
  }

  /** Takes no new hands from now on. */
  drain(): void {
    this.draining = true;
  }

  /** Throws HandRefusal; then nothing of the hand is left. */
  provision(command: ProvisionCommand): Promise<HandStatus> {
    const { handId } = command;
    this.marks.used(handId);
    const known = this.slots.get(handId);
    const slot = known ?? this.newHand(command);
    return this.inTurn(slot, async () => {
      raiseOwner(slot.record, command.ownerNumber);
      if (slot.record.state === "provisioning") await this.make(slot, command);
      else await this.drivers.wakeUp(slot);
      await this.save();
      return statusOf(slot);
    });
  }

  /** The hand is gone afterwards; one that is not there counts as destroyed. Throws HandRefusal when processes are left. */
  async release(handId: string): Promise<void> {
    const slot = this.slots.get(handId);
    if (slot === undefined) {
      for (const driver of this.options.drivers) {
        if ((await driver.listHandIds()).includes(handId)) await this.drivers.discard(driver, handId);
      }
      return;
    }
    this.turns.giveUp(handId, new HandRefusal("PROVISION_FAILED", "it was released before it was made"));
    await this.inTurn(slot, async () => {
      // Of two who asked, the second finds nothing; it must not write once the agent has stopped.
      if (this.slots.get(handId) !== slot) return;
      const driver = this.drivers.named(slot.record.driver);
      slot.live = undefined;
      await this.drivers.discard(driver, handId);
      this.slots.delete(handId);
      await this.save();
    });
  }

  /**
   * Ends the hand's processes and keeps its files; it holds no place from then on. Gives the processes that ended calls
   * had left running and that were ended now. Throws HandRefusal.
   */
  async park(handId: string): Promise<{ status: HandStatus; ended: ProcessInfo[] }> {
    const slot = this.slotOf(handId);
    return this.inTurn(slot, async () => {
      if (slot.record.state === "parked") return { status: statusOf(slot), ended: [] };
      if (!this.drivers.named(slot.record.driver).capabilities.park) {
        throw new HandRefusal("NOT_IMPLEMENTED", `the driver ${slot.record.driver} cannot park hands`);
      }
      const running = (await slot.live?.hand.callProcesses()) ?? [];
      if (slot.live !== undefined) await this.options.mounts?.save(slot.live.hand);
      const left = (await slot.live?.hand.park?.())?.left ?? [];
      slot.live = undefined;
      slot.record.state = "parked";
      slot.detail = left.length === 0 ? "parked" : `parked; ${left.length} processes did not end`;
      await this.save();
      return { status: statusOf(slot), ended: running.filter(({ callId }) => callId !== undefined) };
    });
  }

  /**
   * The hand for a call of this owner, or for a copy, which names none; a parked one is resumed. Throws HandRefusal:
   * nothing has been started then. The common case takes no time, so that a call does not wait for the disk.
   */
  async use(handId: string, ownerNumber: bigint | undefined): Promise<LiveHand> {
    const slot = this.slotOf(handId);
    this.marks.used(handId);
    if (ownerNumber !== undefined && ownerNumber < BigInt(slot.record.ownerNumber)) {
      throw new HandRefusal("OWNER_CHANGED", NOT_ITS_OWN);
    }
    if (ownerNumber !== undefined && raiseOwner(slot.record, ownerNumber)) await this.save();
    if (slot.live !== undefined) return slot.live;
    return this.inTurn(slot, async () => {
      const wasParked = slot.record.state === "parked";
      const live = await this.drivers.wakeUp(slot);
      // Before its first process: after a crash only the processes of hands that are noted as ready are looked for.
      if (wasParked) await this.save();
      return live;
    });
  }

  /** Files of the hand's session: what it was given has changed, or what it left is wanted. Throws HandRefusal. */
  async syncFiles(
    handId: string,
    { uploads, outputs }: { uploads: boolean; outputs: boolean },
    signal: AbortSignal,
  ): Promise<void> {
    const { mounts } = this.options;
    if (mounts === undefined) return;
    const hand = this.slotOf(handId).live?.hand;
    const failed = (error: unknown) => {
      throw new HandRefusal("UNAVAILABLE", `its files are not up to date: ${messageOf(error)}`);
    };
    if (uploads) await mounts.uploadsChanged(handId, hand, signal).catch(failed);
    if (outputs && hand !== undefined) await mounts.offerOutputs(hand, signal).catch(failed);
  }

  /** H-4: calls and copies of owners before this one are refused from now on. A hand that is not here is nobody's. */
  async changeOwner(handId: string, ownerNumber: bigint): Promise<void> {
    const slot = this.slots.get(handId);
    if (slot !== undefined && raiseOwner(slot.record, ownerNumber)) await this.save();
  }

  /** The server's database was set back: what it does not know any more is kept until then (Unix time in ms). */
  async keepUnowned(keepUnownedUntilMs: number): Promise<void> {
    for (const { record } of this.slots.values()) record.keepUnownedUntilMs = keepUnownedUntilMs;
    await this.save();
  }

  /** Destroys what nobody owns: hands of this installation that were named twice, a period apart (H1). */
  async destroyUnowned(handIds: readonly string[], installationId: string): Promise<void> {
    const { log } = this.options;
    if (installationId !== this.options.installationId()) {
      log.error(
        { installationId },
        "the server is another installation than the one this agent joined: no hand is reaped",
      );
      return;
    }
    for (const handId of this.marks.named(handIds)) {
      const { installationId: owner = installationId, keepUnownedUntilMs = 0 } =
        this.slots.get(handId)?.record ?? {};
      if (owner !== installationId || this.options.clock.nowMs() < keepUnownedUntilMs) {
        log.error({ handId, owner }, "a hand of another installation, or of before a restore, is not reaped");
        continue;
      }
      log.warn({ handId }, "a hand that nobody owns is destroyed");
      await this.release(handId).catch((error) =>
        log.error({ err: error, handId }, "it could not be destroyed"),
      );
    }
  }

  /** Ends all processes and keeps all files: what an agent does before it stops. Hands that are being made are given up. */
  async stop(): Promise<void> {
    this.drain();
    this.stopper.abort(new HandRefusal("DRAINING", STOPPING));
    await Promise.all([...this.slots.values()].map((slot) => this.stopOne(slot)));
    await Promise.all(this.options.drivers.map((driver) => this.closeDriver(driver)));
    await this.file.settled();
  }

  /** A driver that hangs does not keep the agent from stopping: its next life looks after what is left. */
  private async stopOne(slot: HandSlot): Promise<void> {
    const stopped = this.inTurn(slot, async () => {
      if (slot.live !== undefined) await this.options.mounts?.saveQuickly(slot.live.hand);
      await slot.live?.hand.park?.();
      slot.live = undefined;
    });
    await within(
      this.options.clock,
      STOP_WITHIN_MS,
      stopped,
      () => new HandError("its driver does not answer"),
    ).catch((error) =>
      this.options.log.warn({ err: error, handId: slot.record.handId }, "a hand did not stop"),
    );
  }

  private async closeDriver(driver: Driver): Promise<void> {
    const closed = driver.close?.() ?? Promise.resolve();
    const { clock, log } = this.options;
    await within(clock, STOP_WITHIN_MS, closed, () => new HandError("it does not answer")).catch((error) =>
      log.warn({ err: error, driver: driver.name }, "a driver did not stop"),
    );
  }

  private newHand(command: ProvisionCommand): HandSlot {
    if (this.draining) throw new HandRefusal("DRAINING", STOPPING);
    // A parked hand is files only and holds no place; whether one may be resumed is the server's to say, who counts alike.
    const places = [...this.slots.values()].filter(({ record, lost }) => !lost && record.state !== "parked");
    if (places.length >= this.options.capacity) {
      throw new HandRefusal(
        "LIMIT_EXCEEDED",
        `the hand agent has its ${this.options.capacity} hands already`,
      );
    }
    const slot = newSlot(newRecord(command, this.options.installationId()));
    this.slots.set(command.handId, slot);
    return slot;
  }

  private async make(slot: HandSlot, command: ProvisionCommand): Promise<void> {
    const { handId } = slot.record;
    let driver: Driver | undefined;
    const limit = new AbortController();
    const stop = () => limit.abort(this.stopper.signal.reason);
    this.stopper.signal.addEventListener("abort", stop, { once: true });
    let stopTimer = () => {};
    this.slots.set(handId, slot); // also when an earlier attempt, that this one had waited for, has failed
    try {
      const maker = this.drivers.named(slot.record.driver);
      driver = maker;
      const onProgress = (detail: string) => this.tell(slot, detail);
      const spec = { ...handSpecOf(command, driver), onProgress };
      await this.save();
      failpoint("agent.hand_noted");
      const timeoutMs = command.environment?.provisionTimeoutMs || DEFAULT_PROVISION_TIMEOUT_MS;
      const deadlineMs = this.options.clock.monotonicMs() + timeoutMs;
      stopTimer = this.options.clock.after(timeoutMs, () =>
        limit.abort(new HandError(`it was not ready within ${timeoutMs} ms`)),
      );
      const turn = { driver, handId, signal: limit.signal, onProgress };
      const hand = await this.turns.run(turn, (outsideTurn) =>
        maker.provision({ ...spec, outsideTurn }, limit.signal),
      );
      const { readStored = noStoredFiles } = this.options;
      await fillMounts(this.options.mounts, hand, slot.record, limit.signal);
      await giveTrust(hand, command.tunnels?.authorities ?? "", limit.signal);
      await this.giveRepositories(slot, hand, command, { spec, deadlineMs, signal: limit.signal });
      await giveResources(hand, command, { readStored, signal: limit.signal });
      failpoint("agent.hand_made");
      slot.record.handle = hand.handle;
      this.drivers.goLive(slot, hand, false);
    } catch (error) {
      if (driver !== undefined) await this.drivers.discard(driver, handId).catch(() => {});
      this.slots.delete(handId);
      await this.save();
      throw this.drivers.refusalOf(error, "PROVISION_FAILED", `the driver ${slot.record.driver} failed`);
    } finally {
      stopTimer();
      this.stopper.signal.removeEventListener("abort", stop);
    }
  }

  private async giveRepositories(
    { record }: HandSlot,
    hand: Hand,
    command: ProvisionCommand,
    { spec, deadlineMs, signal }: { spec: HandSpec; deadlineMs: number; signal: AbortSignal },
  ): Promise<void> {
    const { repositories, clock } = this.options;
    if (!command.resources.some(({ kind }) => kind.case === "gitRepository")) return;
    if (repositories === undefined) throw new HandError("this hand agent clones no repositories");
    const withinMs = Math.max(0, deadlineMs - clock.monotonicMs()) * SHARE_FOR_REPOSITORIES;
    const hasRelay = hasGit(spec.network);
    record.repositories = await repositories.give(hand, command, { withinMs, hasRelay, signal });
  }

  private tell(slot: HandSlot, detail: string): void {
    slot.detail = detail;
    this.onChange(statusOf(slot));
  }

  private async recoverAtStart(slot: HandSlot): Promise<void> {
    const { handId, driver, state } = slot.record;
    const { log } = this.options;
    try {
      if (state === "provisioning") {
        await this.drivers.named(driver).discard(handId);
        this.slots.delete(handId);
      } else if (state === "ready") await this.drivers.wakeUp(slot);
    } catch (error) {
      log.warn({ err: error, handId }, "a hand of before was not resumed");
    }
  }

  /** Hands that drivers hold and no record names: told to the server as lost, which has them released or reaped. */
  private async noteStrays(): Promise<void> {
    for (const driver of this.options.drivers) {
      for (const handId of await driver.listHandIds()) {
        if (this.slots.has(handId)) continue;
        const installationId = this.options.installationId();
        const record: HandRecord = {
          handId,
          driver: driver.name,
          state: "parked",
          handle: null,
          ownerNumber: "0",
          installationId,
        };
        this.slots.set(handId, { ...newSlot(record), lost: true, detail: "the agent has no record of it" });
      }
    }
  }

  private slotOf(handId: string): HandSlot {
    const slot = this.slots.get(handId);
    if (slot === undefined)
      throw new HandRefusal("HAND_LOST", "The hand agent has no such hand; the call was not started.");
    if (slot.lost)
      throw new HandRefusal("HAND_LOST", `The hand is lost (${slot.detail}); the call was not started.`);
    return slot;
  }

  private save(): Promise<void> {
    return this.file.save([...this.slots.values()].filter(({ lost }) => !lost).map(({ record }) => record));
  }

  /** H-1. */
  private inTurn<T>(slot: HandSlot, run: () => Promise<T>): Promise<T> {
    const result = slot.turn.then(run);
    slot.turn = result.catch(() => {});
    return result;
  }
}
