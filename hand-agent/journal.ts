/**
 * The journal of executions: what makes "at most once" true across crashes (X1).
 *
 * J1 `start` and `refuse` resolve only when their record is on disk (fdatasync); concurrent ones share a sync.
 * J2 The journal's id names everything it ever knew: a journal that cannot be read gets a new id, never an empty list
 *    under the old one.
 * J3 An entry stays until `forget`; results are read back from the file, so they take no memory.
 * J4 After a write or a sync has failed nothing new is taken: what is on disk is not known any more.
 * J5 Zeros are written ahead of the records: a sync that only fills them in need not change the file's size, which costs
 *    a file system a good part of a sync. So the end of the records is where the zeros begin.
 */
import { createHash } from "node:crypto";
import {
  closeSync,
  fdatasync,
  fsyncSync,
  ftruncateSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { type Clock, systemClock } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import { newId } from "../kit/ids.ts";
import type { Logger } from "../kit/log.ts";
import { decodeRecord, encodeRecord, type JournalRecord, readJournal } from "./journal-lines.ts";

interface Place {
  offset: number;
  length: number;
}

export interface JournalEntry {
  readonly key: string;
  /** `refused` is a tombstone whose result was lost by a crash; `finished` has a result to offer. */
  state: "started" | "refused" | "finished";
  /** Where its first line stands, and that of its result. */
  intent: Place;
  result?: Place;
}

export interface JournalOptions {
  dataDir: string;
  log: Logger;
  /** The file is rewritten without what is forgotten once it is larger than this and mostly forgotten. */
  compactAboveBytes?: number;
  clock?: Clock;
}

/** The journal cannot take this; nothing was started. */
export class JournalError extends Error {
  override readonly name = "JournalError";
}

const DEFAULT_COMPACT_ABOVE_BYTES = 8 * 1024 * 1024;
const ZEROS_AHEAD_BYTES = 64 * 1024;
/** A result that the server has not stored by then is put on disk; most are stored and forgotten long before. */
const RESULT_SYNC_AFTER_MS = 100;
/** Late repeats of commands for executions that were forgotten are recognised this many executions back. */
const REMEMBERED_FORGOTTEN = 10_000;

interface SyncWaiter {
  sequence: number;
  resolve: () => void;
  reject: (error: Error) => void;
}

export class Journal {
  readonly id: string;
  private readonly options: JournalOptions;
  private readonly path: string;
  private readonly entries = new Map<string, JournalEntry>();
  private readonly forgotten = new Set<string>();
  private fd: number;
  private sizeBytes: number;
  /** When the file is rewritten next: at twice what was alive the last time, so that the cost stays in proportion. */
  private compactAtBytes = 0;
  /** Up to where there are records or zeros. */
  private filledBytes = 0;
  private readonly unsyncedResults = new Set<string>();
  private stopResultSync: (() => void) | undefined;
  private written = 0;
  private synced = 0;
  private waiters: SyncWaiter[] = [];
  private syncing: Promise<void> | undefined;
  private broken: JournalError | undefined;

  /** Opens the journal of this data directory, or makes one. Throws when the directory cannot be written. */
  constructor(options: JournalOptions) {
    this.options = options;
    this.path = join(options.dataDir, "journal.log");
    const found = this.load();
    this.id = found?.id ?? newId("journal");
    this.sizeBytes = found?.sizeBytes ?? 0;
    // The rewrite makes the file when there is none and drops what an earlier life had forgotten or torn.
    this.fd = this.rewrite(found === undefined ? undefined : openSync(this.path, "r"));
  }

  get(key: string): JournalEntry | undefined {
    return this.entries.get(key);
  }

  wasForgotten(key: string): boolean {
    return this.forgotten.has(key);
  }

  list(): JournalEntry[] {
    return [...this.entries.values()];
  }

  /** Resolves when the execution may start (J1). Rejects with JournalError. */
  async start(execution: {
    key: string;
    handId: string;
    name: string;
    input: string;
    atMs: number;
  }): Promise<void> {
    const { key, handId, name, input, atMs } = execution;
    const inputSha256 = createHash("sha256").update(input).digest("hex");
    const intent = this.write({ kind: "started", key, handId, name, inputSha256, atMs });
    this.entries.set(key, { key, state: "started", intent });
    await this.sync();
  }

  /** Notes that the execution must never start; resolves when that is on disk (J1). */
  async refuse({ key, atMs }: { key: string; atMs: number }): Promise<void> {
    const intent = this.write({ kind: "tombstone", key, atMs });
    this.entries.set(key, { key, state: "refused", intent });
    await this.sync();
  }

  /**
   * Keeps the result until `forget`. It outlives the agent at once, and is on disk soon unless it is forgotten before.
   * Not waited for: if it is lost with the machine, the entry says `started`, which is reported as unknown, and the
   * server keeps the first result that it stored.
   */
  finish(key: string, result: Uint8Array): void {
    const entry = this.entries.get(key);
    if (entry === undefined || entry.state === "finished") return;
    entry.result = this.write({ kind: "finished", key, result: Buffer.from(result).toString("base64") });
    entry.state = "finished";
    this.unsyncedResults.add(key);
    this.stopResultSync ??= (this.options.clock ?? systemClock).after(RESULT_SYNC_AFTER_MS, () =>
      this.syncResults(),
    );
  }

  private syncResults(): void {
    this.stopResultSync = undefined;
    if (this.unsyncedResults.size === 0) return;
    this.unsyncedResults.clear();
    void this.sync().catch(() => {});
  }

  /** The encoded result of a finished entry. */
  readResult(key: string): Uint8Array {
    const place = this.entries.get(key)?.result;
    if (place === undefined) throw new JournalError(`the journal has no result of ${key}`);
    const line = readPlace(this.fd, place);
    const record = decodeRecord(line.subarray(0, place.length - 1));
    if (record?.kind !== "finished") throw new JournalError(`the result of ${key} cannot be read back`);
    return Buffer.from(record.result, "base64");
  }

  /** The server has the result; the id is now the server's to answer for (X1d). */
  forget(key: string): void {
    this.remember(key);
    this.unsyncedResults.delete(key);
    if (!this.entries.delete(key)) return;
    // Losing this record only means that a stored result is offered once more.
    if (this.broken === undefined) this.write({ kind: "forgotten", key });
    if (this.sizeBytes > this.compactAtBytes) void this.sync().catch(() => {});
  }

  /** Resolves when nothing of the journal is in flight. */
  async close(): Promise<void> {
    this.stopResultSync?.();
    if (this.broken === undefined) this.syncResults();
    await this.syncing;
    closeSync(this.fd);
    this.broken ??= new JournalError("the journal is closed");
  }

  private load(): { id: string; sizeBytes: number } | undefined {
    let content: Buffer;
    try {
      content = readFileSync(this.path);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
      throw error;
    }
    const journal = readJournal(content);
    if (journal.kind === "corrupt") {
      const aside = `${this.path}.corrupt`;
      renameSync(this.path, aside);
      const facts = { file: aside, atByte: journal.atByte };
      this.options.log.error(facts, "the journal cannot be read; what it knew is reported as unknown");
      return undefined;
    }
    if (journal.tornBytes > 0)
      this.options.log.warn({ bytes: journal.tornBytes }, "the journal's last line was torn");
    for (const { record, offset, length } of journal.lines) this.replay(record, { offset, length });
    return { id: journal.id, sizeBytes: journal.goodBytes };
  }

  private replay(record: JournalRecord, place: Place): void {
    switch (record.kind) {
      case "started":
        this.entries.set(record.key, { key: record.key, state: "started", intent: place });
        return;
      case "tombstone":
        this.entries.set(record.key, { key: record.key, state: "refused", intent: place });
        return;
      case "finished": {
        const entry = this.entries.get(record.key);
        if (entry) Object.assign(entry, { state: "finished", result: place });
        return;
      }
      case "forgotten":
        this.entries.delete(record.key);
        this.remember(record.key);
        return;
      case "journal":
        return;
    }
  }

  private remember(key: string): void {
    this.forgotten.add(key);
    if (this.forgotten.size <= REMEMBERED_FORGOTTEN) return;
    for (const oldest of this.forgotten) {
      this.forgotten.delete(oldest);
      return;
    }
  }

  /** Appends a record; it is on disk after the next sync. */
  private write(record: JournalRecord): Place {
    if (this.broken !== undefined) throw this.broken;
    const line = encodeRecord(record);
    const place = { offset: this.sizeBytes, length: line.length };
    try {
      if (place.offset + line.length > this.filledBytes) this.fillAhead(place.offset + line.length);
      writeAt(this.fd, line, place.offset);
    } catch (error) {
      this.undo(place.offset, error);
      throw new JournalError(`the journal cannot be written: ${messageOf(error)}`);
    }
    this.sizeBytes += line.length;
    this.written += 1;
    return place;
  }

  /** J5. */
  private fillAhead(fromBytes: number): void {
    writeAt(this.fd, Buffer.alloc(ZEROS_AHEAD_BYTES), fromBytes);
    this.filledBytes = fromBytes + ZEROS_AHEAD_BYTES;
  }

  /** A full disk may pass: half a line is taken back, so that the next one does not follow rubbish. */
  private undo(sizeBytes: number, error: unknown): void {
    this.options.log.error({ err: error }, "the journal cannot be written");
    try {
      ftruncateSync(this.fd, sizeBytes);
      this.filledBytes = sizeBytes;
    } catch (truncateError) {
      this.fail(truncateError);
    }
  }

  private sync(): Promise<void> {
    if (this.broken !== undefined) return Promise.reject(this.broken);
    const done = new Promise<void>((resolve, reject) => {
      this.waiters.push({ sequence: this.written, resolve, reject });
    });
    this.syncing ??= this.syncAll().finally(() => {
      this.syncing = undefined;
    });
    return done;
  }

  private async syncAll(): Promise<void> {
    while (this.waiters.length > 0 && this.broken === undefined) {
      const target = this.written;
      const error = await new Promise<Error | null>((resolve) => fdatasync(this.fd, resolve));
      if (error) return this.fail(error);
      this.synced = target;
      this.settle();
      if (this.sizeBytes > this.compactAtBytes) this.compact();
    }
  }

  private settle(): void {
    const ready = this.waiters.filter(({ sequence }) => sequence <= this.synced);
    this.waiters = this.waiters.filter(({ sequence }) => sequence > this.synced);
    for (const { resolve } of ready) resolve();
  }

  /** J4. */
  private fail(error: unknown): void {
    this.options.log.error(
      { err: error },
      "the journal cannot be relied on any more; the agent takes no calls",
    );
    this.broken = new JournalError(`the journal cannot be relied on: ${messageOf(error)}`);
    const waiters = this.waiters;
    this.waiters = [];
    for (const { reject } of waiters) reject(this.broken);
  }

  private compact(): void {
    try {
      this.fd = this.rewrite(this.fd);
      this.synced = this.written;
      this.settle();
    } catch (error) {
      this.fail(error);
    }
  }

  /** Puts a file in place that holds only living entries, all on disk. Closes the old one. */
  private rewrite(old: number | undefined): number {
    const fresh = `${this.path}.new`;
    const fd = openSync(fresh, "w+", 0o600);
    let size = 0;
    const put = (line: Uint8Array) => {
      const offset = size;
      writeAt(fd, line, offset);
      size += line.length;
      return { offset, length: line.length };
    };
    put(encodeRecord({ kind: "journal", version: 1, id: this.id }));
    for (const entry of this.entries.values()) {
      if (old === undefined) break;
      entry.intent = put(readPlace(old, entry.intent));
      if (entry.result !== undefined) entry.result = put(readPlace(old, entry.result));
    }
    writeAt(fd, Buffer.alloc(ZEROS_AHEAD_BYTES), size);
    fsyncSync(fd);
    renameSync(fresh, this.path);
    syncDirectory(this.options.dataDir);
    if (old !== undefined) closeSync(old);
    this.sizeBytes = size;
    this.filledBytes = size + ZEROS_AHEAD_BYTES;
    this.compactAtBytes = Math.max(this.options.compactAboveBytes ?? DEFAULT_COMPACT_ABOVE_BYTES, 2 * size);
    return fd;
  }
}

function writeAt(fd: number, bytes: Uint8Array, offset: number): void {
  for (let done = 0; done < bytes.length; ) {
    done += writeSync(fd, bytes, done, bytes.length - done, offset + done);
  }
}

function readPlace(fd: number, { offset, length }: Place): Buffer {
  const line = Buffer.alloc(length);
  readSync(fd, line, 0, length, offset);
  return line;
}

function syncDirectory(path: string): void {
  const fd = openSync(path, "r");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}
