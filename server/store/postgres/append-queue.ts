/**
 * Group commit (L1, L2): appends that wait are committed together, one statement a batch.
 *
 * Q1 With nothing else waiting an append goes out alone, at once. While a batch of many is under way the next one gathers
 *    until that is done, and a moment longer: those whom it answered are likely to write again.
 * Q2 A session is in one batch at a time, so its appends keep their order and never find its row locked by this process.
 * Q3 In one batch no two items of a session can decide each other's verdict; those that could wait for the next batch.
 * Q4 Rows locked elsewhere hold up nobody else. An item that found its row locked tries again shortly; after a few times it
 *    waits for the row, on a connection of its own, so that writers elsewhere cannot starve it.
 * Q5 Answers of a batch are told a few at a time, and the next batch need not wait for that: told all at once, callers on
 *    the same connections would all write again at once, and callers, server and Postgres would only ever work in turns.
 * Q6 Everything that waits is bounded; beyond the bound an append is refused at once with UNAVAILABLE.
 */
import { isTendonError, TendonError } from "../../../kit/errors.ts";
import type { Appended, AppendRequest } from "../events.ts";
import { type AppendItem, appendBatch, appendItem, type Verdict } from "./append-batch.ts";
import type { Pool } from "./pool.ts";

export interface AppendQueueOptions {
  /** Batches under way at once. */
  lanes?: number;
}

const LANES = 2;
/** A batch is under way beside one of at most so many items; beside a larger one only when it is full. */
const FEW_ITEMS = 4;
const MAX_ITEMS = 256;
const MAX_BYTES = 4 * 1024 * 1024;
/** Keeps the work per statement bounded when items have many events. */
const MAX_EVENTS = 1024;

/** More than this many waiting appends, or bytes, would not be served in time anyway. */
const MAX_WAITING = 20_000;
const MAX_WAITING_BYTES = 256 * 1024 * 1024;

/** Q5. */
const TOLD_AT_ONCE = 8;

const BUSY_RETRY_MS = 1;
const BUSY_TRIES = 3;
const MAX_PATIENT = 2;

interface Waiting extends AppendItem {
  readonly resolve: (appended: Appended) => void;
  readonly reject: (error: unknown) => void;
  busy: number;
}

export class AppendQueue {
  private readonly pool: Pool;
  private readonly lanes: number;
  private waiting: Waiting[] = [];
  private waitingBytes = 0;
  private pending = 0;
  private running = 0;
  private runningItems = 0;
  private gathering = false;
  private patient = 0;
  private readonly busySessions = new Set<string>();
  private closing: { resolve: () => void; promise: Promise<void> } | undefined;

  constructor(pool: Pool, options: AppendQueueOptions = {}) {
    this.pool = pool;
    this.lanes = options.lanes ?? LANES;
  }

  append(request: AppendRequest): Promise<Appended> {
    if (this.closing) return Promise.reject(new TendonError("DRAINING", "the server stops; try another one"));
    if (this.waiting.length >= MAX_WAITING || this.waitingBytes >= MAX_WAITING_BYTES) {
      return Promise.reject(new TendonError("UNAVAILABLE", "too many appends wait; try again"));
    }
    const item = appendItem(request);
    return new Promise((resolve, reject) => {
      this.pending += 1;
      this.enqueue({ ...item, resolve, reject, busy: 0 });
      this.pump();
    });
  }

  close(): Promise<void> {
    if (!this.closing) {
      let resolve = () => {};
      const promise = new Promise<void>((done) => {
        resolve = done;
      });
      this.closing = { resolve, promise };
      if (this.pending === 0) resolve();
    }
    return this.closing.promise;
  }

  private enqueue(item: Waiting): void {
    this.waiting.push(item);
    this.waitingBytes += item.bytes;
  }

  private pump(): void {
    while (this.mayRun()) {
      const batch = this.takeBatch();
      if (batch.length === 0) return;
      this.running += 1;
      this.runningItems += batch.length;
      const committed = () => {
        this.running -= 1;
        this.runningItems -= batch.length;
        if (batch.length > 1) this.gather();
        else this.pump();
      };
      this.run(batch, false, committed).catch(() => {});
    }
  }

  /** Q1. */
  private mayRun(): boolean {
    if (this.waiting.length === 0 || this.running >= this.lanes) return false;
    if (this.waiting.length >= MAX_ITEMS || this.waitingBytes >= MAX_BYTES) return true;
    return !this.gathering && this.runningItems <= FEW_ITEMS;
  }

  private gather(): void {
    if (this.gathering) return;
    this.gathering = true;
    this.pool.clock.soon(() => {
      this.gathering = false;
      this.pump();
    });
  }

  /** Takes as many items as one batch may hold, oldest first; the order of a session's items is kept (Q2, Q3). */
  private takeBatch(): Waiting[] {
    const batch: Waiting[] = [];
    const claims: Claims = { names: new Set(), held: new Set(this.busySessions) };
    let left: Waiting[] = [];
    let bytes = 0;
    let events = 0;
    for (const [index, item] of this.waiting.entries()) {
      const { sessionId, events: itemEvents } = item.request;
      const fits =
        batch.length === 0 ||
        (batch.length < MAX_ITEMS &&
          bytes + item.bytes <= MAX_BYTES &&
          events + itemEvents.length <= MAX_EVENTS);
      if (!fits) {
        left = left.concat(this.waiting.slice(index));
        break;
      }
      if (!claim(claims, item)) {
        claims.held.add(sessionId);
        left.push(item);
        continue;
      }
      batch.push(item);
      bytes += item.bytes;
      events += itemEvents.length;
    }
    this.waiting = left;
    this.waitingBytes -= bytes;
    for (const { request } of batch) this.busySessions.add(request.sessionId);
    return batch;
  }

  /** `committed` is called once the batch has left Postgres, before all have been told. */
  private async run(batch: Waiting[], waits: boolean, committed = () => {}): Promise<void> {
    let verdicts: Verdict[];
    try {
      verdicts = await appendBatch(this.pool, batch, waits);
    } catch (error) {
      await this.failed(batch, waits, error).finally(committed);
      return;
    }
    committed();
    const isBusy = (_: Waiting, index: number) => verdicts[index]!.kind === "busy";
    const again = batch.filter(isBusy);
    for (let from = 0; from < batch.length; from += TOLD_AT_ONCE) {
      if (from > 0) await this.soon();
      const few = batch.slice(from, from + TOLD_AT_ONCE);
      for (const [index, item] of few.entries()) this.settle(item, verdicts[from + index]!);
      // A session that has more to be told stays claimed, so that it is told in order (Q2).
      this.release(few, [...batch.slice(from + TOLD_AT_ONCE), ...again]);
      this.pump();
    }
    if (again.length > 0) this.retryBusy(again);
  }

  private soon(): Promise<void> {
    return new Promise((resolve) => this.pool.clock.soon(resolve));
  }

  /** One item that Postgres cannot take must not fail its neighbours: they are tried one by one. */
  private async failed(batch: Waiting[], waits: boolean, error: unknown): Promise<void> {
    if (batch.length === 1 || isTendonError(error, "UNAVAILABLE")) {
      for (const item of batch) this.end(() => item.reject(error));
      this.release(batch, []);
      return;
    }
    for (const item of batch) await this.run([item], waits);
  }

  private settle(item: Waiting, verdict: Verdict): void {
    if (verdict.kind === "busy") return;
    this.end(() => (verdict.kind === "done" ? item.resolve(verdict.appended) : item.reject(verdict.error)));
  }

  private end(tell: () => void): void {
    this.pending -= 1;
    tell();
    if (this.pending === 0) this.closing?.resolve();
  }

  /** Sessions of `kept` stay claimed: their items go first when they are told or tried again (Q2). */
  private release(batch: readonly Waiting[], kept: readonly Waiting[]): void {
    const stay = new Set(kept.map(({ request }) => request.sessionId));
    for (const { request } of batch) {
      if (!stay.has(request.sessionId)) this.busySessions.delete(request.sessionId);
    }
  }

  private retryBusy(items: Waiting[]): void {
    for (const item of items) item.busy += 1;
    const patient: Waiting[][] = [];
    const soon: Waiting[] = [];
    for (const group of bySession(items)) {
      if (group[0]!.busy >= BUSY_TRIES && this.patient < MAX_PATIENT) {
        this.patient += 1;
        patient.push(group);
      } else soon.push(...group);
    }
    for (const group of patient) {
      this.run(group, true)
        .finally(() => {
          this.patient -= 1;
          this.pump();
        })
        .catch(() => {});
    }
    if (soon.length > 0) this.pool.clock.after(BUSY_RETRY_MS, () => this.requeue(soon));
  }

  private requeue(items: readonly Waiting[]): void {
    this.release(items, []);
    this.waiting = [...items, ...this.waiting];
    for (const item of items) this.waitingBytes += item.bytes;
    this.pump();
  }
}

function bySession(items: readonly Waiting[]): Waiting[][] {
  const groups = new Map<string, Waiting[]>();
  for (const item of items) {
    const group = groups.get(item.request.sessionId);
    if (group) group.push(item);
    else groups.set(item.request.sessionId, [item]);
  }
  return [...groups.values()];
}

interface Claims {
  /** Sessions, event ids and answered calls of the batch so far. */
  readonly names: Set<string>;
  /** Sessions of which no item may be taken any more: they are in another batch, or an older item of theirs was left. */
  readonly held: Set<string>;
}

/** Whether the item may join the batch, given those already in it. */
function claim({ names, held }: Claims, { request, facts }: AppendItem): boolean {
  const { sessionId, events } = request;
  if (held.has(sessionId)) return false;
  if (names.has(sessionId)) {
    for (const [index, { id }] of events.entries()) {
      const { answers, call } = facts[index]!;
      if (names.has(`${sessionId} ${id}`)) return false;
      if (answers !== undefined && names.has(`${sessionId} answers ${answers}`)) return false;
      // A call must be in the log before a client's answer to it is judged.
      if (call !== undefined && names.has(`${sessionId} ${call}`)) return false;
    }
  }
  names.add(sessionId);
  for (const [index, { id }] of events.entries()) {
    const answers = facts[index]?.answers;
    names.add(`${sessionId} ${id}`);
    if (answers !== undefined) names.add(`${sessionId} answers ${answers}`);
  }
  return true;
}
