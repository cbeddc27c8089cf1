/**
 * The mounts of all hands: memory stores and session logs are brought up to date before each call and stores once more
 * after it, one hand at a time, each within a bound. A call never fails because of them; what could not be done is told
 * in its result and done with the next one.
 */
import type { Clock } from "../../kit/clock.ts";
import { isTendonError, messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type {
  HandFile,
  OfferOutputsResponse,
  ReadSessionLogResponse,
  SyncMemoryResponse,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { type Hand, HandError, type HandMounts } from "../drivers/driver.ts";
import { MemoryCopy, type SyncRequest } from "./memory-copy.ts";
import { MemoryScanner } from "./memory-scan.ts";
import {
  type MountConfig,
  type MountedStore,
  OUTPUTS_DIR,
  SESSION_DIR,
  UPLOADS_DIR,
} from "./mount-config.ts";
import { type MountState, MountStates, newStoreState, type StoreState } from "./mount-state.ts";
import { type OutputFile, type OutputPart, type OutputTarget, offerOutputs } from "./output-offers.ts";
import { bringLogUpToDate } from "./session-log-file.ts";
import { bringUploadsUpToDate } from "./upload-copies.ts";

/** The server, by the connection of now; calls reject when there is none. */
export interface MountsServer {
  /** Of the connection: on a newer one something may have been missed. */
  generation(): bigint | undefined;
  listHandFiles(request: OfHand, signal: AbortSignal): Promise<readonly HandFile[]>;
  readHandFile(request: OfHand & { sha256: string }, signal: AbortSignal): AsyncIterable<Uint8Array>;
  offerOutputs(request: OfHand & { files: OutputFile[] }, signal: AbortSignal): Promise<OfferOutputsResponse>;
  storeOutput(parts: AsyncIterable<OutputPart>, signal: AbortSignal): Promise<void>;
  syncMemory(request: SyncRequest & OfHand, signal: AbortSignal): Promise<SyncMemoryResponse>;
  readSessionLog(
    request: OfHand & { afterPosition: bigint },
    signal: AbortSignal,
  ): AsyncIterable<ReadSessionLogResponse>;
}

interface OfHand {
  readonly handId: string;
  readonly ownerNumber: bigint;
}

export interface MountsDeps {
  readonly dataDir: string;
  readonly server: MountsServer;
  readonly clock: Clock;
  readonly log: Logger;
}

/** A hand with mounts, and in whose name it is used. */
export interface MountedHand {
  readonly hand: Hand;
  readonly config: MountConfig;
  /** As far as the agent knows by now. */
  readonly ownerNumber: () => bigint;
}

/** The agent's record of a hand, as far as mounts go. */
export interface MountRecord {
  readonly mounts?: MountConfig | undefined;
  /** Decimal digits; only ever grows. */
  readonly ownerNumber: string;
}

function mountedOf(hand: Hand, record: MountRecord): MountedHand | undefined {
  const { mounts: config } = record;
  // One whose driver could not give it any has none; where it needs them it was not made.
  if (hand.mounts === undefined) return undefined;
  return config && { hand, config, ownerNumber: () => BigInt(record.ownerNumber) };
}

/** What a new hand finds below /mnt. Throws HandError when it could not be had. */
export async function fillMounts(
  mounts: Mounts | undefined,
  hand: Hand,
  record: MountRecord,
  signal: AbortSignal,
): Promise<void> {
  const mounted = mountedOf(hand, record);
  if (mounted === undefined) return;
  if (mounts === undefined) throw new HandError("this hand agent keeps nothing below /mnt in hands");
  await mounts.fill(mounted, signal).catch((error) => {
    signal.throwIfAborted();
    throw new HandError(`what is below /mnt could not be given: ${messageOf(error)}`, { cause: error });
  });
}

/** A call waits no longer than this for what others changed, and its result no longer for what it changed. */
const CALL_WITHIN_MS = 10_000;
const QUICK_MS = 1_500;
const MAX_UNTOLD = 20;
const MAX_NOTES = 20;

interface Kept {
  state: MountState;
  readonly scanners: Map<string, MemoryScanner>;
  /** Connection on which the files that the session was given were last as the server said; undefined: look again. */
  uploadsAt: bigint | undefined;
  /** One look for outputs at a time. */
  offering: Promise<unknown>;
  turn: Promise<unknown>;
}

export class Mounts {
  private readonly deps: MountsDeps;
  private readonly states: MountStates;
  private readonly kept = new Map<string, Promise<Kept>>();
  private readonly opened = new WeakMap<Hand, MountedHand>();
  private readonly placed = new WeakSet<Hand>();
  private readonly met = new WeakSet<HandMounts>();

  constructor(deps: MountsDeps) {
    this.deps = deps;
    this.states = new MountStates(deps.dataDir);
  }

  /** The hand takes calls from now on. */
  open(hand: Hand, record: MountRecord): void {
    const mounted = mountedOf(hand, record);
    if (mounted !== undefined) this.opened.set(hand, mounted);
  }

  /** Undefined for a hand without mounts. */
  of(hand: Hand): MountedHand | undefined {
    return this.opened.get(hand);
  }

  /** All of it, for a new hand. Rejects when it could not be had. */
  async fill(mounted: MountedHand, signal: AbortSignal): Promise<void> {
    await this.inTurn(mounted, signal, async (kept, mounts) => {
      const notes = await this.syncAll(mounted, mounts, kept, signal, mounted.config.sessionLog);
      await this.tellLater(mounted.hand.id, notes);
    });
  }

  /** Gives notes for the model. Never rejects. */
  async beforeCall(mounted: MountedHand): Promise<string[]> {
    const notes = await this.withinBound(
      mounted,
      "what is below it could not be brought up to date",
      (kept, mounts, signal) => this.syncAll(mounted, mounts, kept, signal, mounted.config.sessionLog),
    );
    return [...this.placeNotes(mounted), ...(await this.untold(mounted.hand.id)), ...notes];
  }

  /** Gives notes for the model. Never rejects. */
  afterCall(mounted: MountedHand, withinMs = CALL_WITHIN_MS): Promise<string[]> {
    if (mounted.config.memoryStores.length === 0) return Promise.resolve([]);
    return this.withinBound(
      mounted,
      "changes are not saved yet and will be with the next call",
      (kept, mounts, signal) => this.syncAll(mounted, mounts, kept, signal, false),
      withinMs,
    );
  }

  /** What processes changed since the last call, before they are ended. What has to be told is told with the next call. */
  async save(hand: Hand, withinMs = CALL_WITHIN_MS): Promise<void> {
    const mounted = this.of(hand);
    if (mounted === undefined) return;
    await this.tellLater(hand.id, await this.afterCall(mounted, withinMs));
  }

  private async tellLater(handId: string, notes: readonly string[]): Promise<void> {
    if (notes.length === 0) return;
    const { state } = await this.keep(handId);
    state.untold = [...state.untold, ...notes].slice(-MAX_UNTOLD);
    await this.states.write(handId, state);
  }

  /** The same for an agent that stops: hands have little time then. */
  saveQuickly(hand: Hand): Promise<void> {
    return this.save(hand, QUICK_MS);
  }

  private async untold(handId: string): Promise<string[]> {
    const { state } = await this.keep(handId);
    const notes = state.untold;
    if (notes.length === 0) return [];
    state.untold = [];
    await this.states.write(handId, state);
    return notes;
  }

  /** Once in a hand's life between two parkings: where its commands find what others find below /mnt. */
  private placeNotes({ hand, config }: MountedHand): string[] {
    const { mounts } = hand;
    if (mounts === undefined || this.placed.has(hand)) return [];
    this.placed.add(hand);
    const paths = config.memoryStores.map(({ path }) => path);
    if (config.sessionLog) paths.push(SESSION_DIR);
    if (config.uploads) paths.push(UPLOADS_DIR);
    if (config.outputs) paths.push(OUTPUTS_DIR);
    return paths.flatMap((path) => {
      const seenAt = mounts.seenAt(path);
      return seenAt === path
        ? []
        : [`[in this hand, commands find ${path} at ${seenAt}; file tools know both]`];
    });
  }

  /** The hand is gone. */
  async forget(handId: string): Promise<void> {
    this.kept.delete(handId);
    await this.states.remove(handId);
  }

  private async withinBound(
    mounted: MountedHand,
    trouble: string,
    run: (kept: Kept, mounts: HandMounts, signal: AbortSignal) => Promise<string[]>,
    withinMs = CALL_WITHIN_MS,
  ): Promise<string[]> {
    const limit = new AbortController();
    const stopTimer = this.deps.clock.after(withinMs, () =>
      limit.abort(new Error(`it took longer than ${withinMs / 1_000} s`)),
    );
    try {
      return await this.inTurn(mounted, limit.signal, (kept, mounts) => run(kept, mounts, limit.signal));
    } catch (error) {
      const why = limit.signal.aborted ? messageOf(limit.signal.reason) : messageOf(error);
      this.deps.log.warn({ handId: mounted.hand.id, error: why }, "the mounts of a hand are not up to date");
      return [`[/mnt: ${trouble} (${why})]`];
    } finally {
      stopTimer();
    }
  }

  private async syncAll(
    mounted: MountedHand,
    mounts: HandMounts,
    kept: Kept,
    signal: AbortSignal,
    withLog: boolean,
  ): Promise<string[]> {
    const notes: string[] = [];
    const note = (text: string) => void notes.push(`[${text}]`);
    try {
      for (const store of mounted.config.memoryStores)
        await this.syncStore(mounted, mounts, kept, { store, note }, signal);
      if (withLog) await this.syncLog(mounted, mounts, kept, signal);
      if (mounted.config.uploads) await this.syncUploads(mounted, mounts, kept, signal);
      return shortened(notes);
    } catch (error) {
      await this.tellLater(mounted.hand.id, notes);
      throw error;
    }
  }

  private async syncStore(
    { hand, ownerNumber }: MountedHand,
    mounts: HandMounts,
    kept: Kept,
    { store, note }: { store: MountedStore; note: (text: string) => void },
    signal: AbortSignal,
  ): Promise<void> {
    const { memoryStoreId } = store;
    const state = kept.state.stores[memoryStoreId] ?? newStoreState();
    kept.state.stores[memoryStoreId] = state;
    const before = fingerprint(state);
    const scanner = scannerOf(kept, store, mounts, this.deps.clock);
    const copy = new MemoryCopy({ store, state, mounts, scanner, note });
    const sync = (request: SyncRequest) =>
      this.deps.server.syncMemory({ ...request, handId: hand.id, ownerNumber: ownerNumber() }, signal);
    try {
      await copy.bringUpToDate(sync, signal);
    } catch (error) {
      if (!isTendonError(error, "NOT_FOUND")) throw error;
      // It was deleted, or the hand belongs to a session that was not given it.
      await copy.clear(signal);
      if (before !== EMPTY) note(`${store.path}: the memory store is not there any more`);
    } finally {
      if (fingerprint(state) !== before) await this.states.write(hand.id, kept.state);
    }
  }

  private async syncLog(
    { hand, ownerNumber: ownerOf }: MountedHand,
    mounts: HandMounts,
    kept: Kept,
    signal: AbortSignal,
  ): Promise<void> {
    const ownerNumber = ownerOf();
    await bringLogUpToDate({
      mounts,
      ownerNumber,
      state: kept.state.log,
      readLog: (afterPosition) =>
        this.deps.server.readSessionLog({ handId: hand.id, ownerNumber, afterPosition }, signal),
      save: async (log) => {
        kept.state.log = log;
        await this.states.write(hand.id, kept.state);
      },
    });
  }

  private async syncUploads(
    { hand, ownerNumber: ownerOf }: MountedHand,
    mounts: HandMounts,
    kept: Kept,
    signal: AbortSignal,
  ): Promise<void> {
    const { server } = this.deps;
    const generation = server.generation();
    if (generation !== undefined && kept.uploadsAt === generation) return;
    const of = { handId: hand.id, ownerNumber: ownerOf() };
    // Said before the server is asked: what changes meanwhile is told again.
    kept.uploadsAt = generation;
    try {
      const source = {
        list: (stop: AbortSignal) => server.listHandFiles(of, stop),
        read: (sha256: string, stop: AbortSignal) => server.readHandFile({ ...of, sha256 }, stop),
      };
      const save = () => this.states.write(hand.id, kept.state);
      await bringUploadsUpToDate(mounts, kept.state.uploads, source, { signal, save });
    } catch (error) {
      kept.uploadsAt = undefined;
      throw error;
    }
  }

  /** What the session was given has changed: a hand that is awake has it when this resolves, another before its next call. */
  async uploadsChanged(handId: string, hand: Hand | undefined, signal: AbortSignal): Promise<void> {
    const kept = await this.keep(handId);
    kept.uploadsAt = undefined;
    const mounted = hand && this.of(hand);
    if (!mounted?.config.uploads) return;
    await this.inTurn(mounted, signal, (known, mounts) => this.syncUploads(mounted, mounts, known, signal));
  }

  /** What its processes left as output is stored when this resolves, as far as the server wants it. */
  async offerOutputs(hand: Hand, signal: AbortSignal): Promise<void> {
    const mounted = this.of(hand);
    if (!mounted?.config.outputs) return;
    const { server } = this.deps;
    const of = { handId: hand.id, ownerNumber: mounted.ownerNumber() };
    const target: OutputTarget = {
      offer: (files, stop) => server.offerOutputs({ ...of, files: [...files] }, stop),
      store: (file, bytes, stop) => server.storeOutput(partsOf({ ...of, file }, bytes), stop),
    };
    const kept = await this.inTurn(mounted, signal, async (known) => known);
    // Calls do not wait for it: only what is noted of it takes its turn.
    const save = () => this.inTurn(mounted, signal, ({ state }) => this.states.write(hand.id, state));
    const run = kept.offering.then(() =>
      offerOutputs(hand.mounts!, kept.state.outputs, target, { signal, save }),
    );
    kept.offering = run.catch(() => {});
    await run;
  }

  private async inTurn<T>(
    { hand, config }: MountedHand,
    signal: AbortSignal,
    run: (kept: Kept, mounts: HandMounts) => Promise<T>,
  ): Promise<T> {
    const { mounts } = hand;
    if (mounts === undefined) throw new Error("the hand has no mounts");
    const kept = await this.keep(hand.id);
    const result = kept.turn.then(() => {
      signal.throwIfAborted();
      if (!this.met.has(mounts)) startAnew(kept.state, config, mounts);
      this.met.add(mounts);
      return run(kept, mounts);
    });
    kept.turn = result.catch(() => {});
    return result;
  }

  private keep(handId: string): Promise<Kept> {
    const known = this.kept.get(handId);
    if (known !== undefined) return known;
    const kept = this.states.read(handId).then((state) => ({
      state,
      scanners: new Map<string, MemoryScanner>(),
      uploadsAt: undefined,
      offering: Promise.resolve(),
      turn: Promise.resolve(),
    }));
    this.kept.set(handId, kept);
    return kept;
  }
}

async function* partsOf(
  start: OfHand & { file: OutputFile },
  bytes: AsyncIterable<Uint8Array>,
): AsyncGenerator<OutputPart> {
  yield { kind: { case: "start", value: start } };
  for await (const value of bytes) yield { kind: { case: "chunk", value } };
  yield { kind: { case: "end", value: {} } };
}

/** A hand that came back has other primitives than the one before. */
function scannerOf(kept: Kept, store: MountedStore, mounts: HandMounts, clock: Clock): MemoryScanner {
  const known = kept.scanners.get(store.memoryStoreId);
  if (known?.isOf(mounts)) return known;
  const scanner = new MemoryScanner(mounts, store.path, () => clock.nowMs());
  kept.scanners.set(store.memoryStoreId, scanner);
  return scanner;
}

/** A directory that had to be made is empty: nothing in it was deleted by the hand. */
function startAnew(state: MountState, { memoryStores }: MountConfig, { made }: HandMounts): void {
  for (const { memoryStoreId, path } of memoryStores)
    if (made.includes(path)) state.stores[memoryStoreId] = newStoreState();
  if (made.includes(SESSION_DIR)) state.log = undefined;
  if (made.includes(UPLOADS_DIR)) state.uploads = {};
  if (made.includes(OUTPUTS_DIR)) state.outputs = {};
}

/** A result is not there to list hundreds of files. */
function shortened(notes: readonly string[]): string[] {
  if (notes.length <= MAX_NOTES) return [...notes];
  return [...notes.slice(0, MAX_NOTES), `[and ${notes.length - MAX_NOTES} more files like these]`];
}

function fingerprint(state: StoreState): string {
  return JSON.stringify(state);
}

const EMPTY = fingerprint(newStoreState());
