/**
 * A memory store's copy in one hand, kept like the store.
 *
 * M1 What stands in `state.files` is what store and hand both had last. A file that is different now was changed in the
 *    hand; a store that is different now was changed by others.
 * M2 A change goes to the store under the condition that the store still has what M1 says. Where it has not, the store
 *    stands, and the hand's text is kept beside it under another name, which is told.
 * M3 What the store has goes into the hand only over a file that is as M1 says: what a process writes meanwhile is found
 *    as a change the next time.
 * M4 `state` is saved by the caller after each step, and every step may be done again.
 */
import { createHash } from "node:crypto";
import { posix } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { messageOf } from "../../kit/errors.ts";
import {
  type MemoryChange,
  MemoryChangeOutcome,
  type MemoryChangeSchema,
  type SyncMemoryRequestSchema,
  type SyncMemoryResponse,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { FileError, HandMounts } from "../drivers/driver.ts";
import { MAX_FILE_BYTES, type MemoryScanner, type Scan, type ScannedFile } from "./memory-scan.ts";
import type { MountedStore } from "./mount-config.ts";
import type { StoreState } from "./mount-state.ts";
import { makeWayPassable } from "./passable-dirs.ts";

export type SyncRequest = Omit<
  MessageInitShape<typeof SyncMemoryRequestSchema>,
  "$typeName" | "handId" | "ownerNumber"
>;
export type Sync = (request: SyncRequest) => Promise<SyncMemoryResponse>;

type Change = Pick<MemoryChange, "path" | "baseSha256"> & { content?: Uint8Array; sha256: string };

const MAX_CHANGES = 64;
const MAX_CHANGE_BYTES = 1024 * 1024;
const MAX_WANTED = 64;
/** Conflicts leave new files; those are changes of the next round. */
const MAX_ROUNDS = 3;

export interface MemoryCopyOptions {
  readonly store: MountedStore;
  readonly state: StoreState;
  readonly mounts: HandMounts;
  readonly scanner: MemoryScanner;
  /** Told what the model has to hear of, when it happens. */
  readonly note?: (text: string) => void;
}

export class MemoryCopy {
  private readonly options: MemoryCopyOptions;
  private notes: string[] = [];

  constructor(options: MemoryCopyOptions) {
    this.options = options;
  }

  /**
   * Gives all that was noted. Rejects when the server cannot be reached; what was done by then stays, and what was noted
   * by then has to be told.
   */
  async bringUpToDate(sync: Sync, signal: AbortSignal): Promise<string[]> {
    this.notes = [];
    for (let round = 1; round <= MAX_ROUNDS; round += 1) {
      const scan = await this.scan(signal);
      const changes = scan === undefined ? [] : await this.changesIn(scan, signal);
      const wanted = new Set(this.options.state.wanted);
      const conflicts = await this.exchange(sync, changes, wanted, signal);
      await this.fetch(sync, wanted, scan, signal);
      if (conflicts === 0) break;
    }
    return this.notes;
  }

  /** Nothing of the store stays in the hand. */
  async clear(signal: AbortSignal): Promise<void> {
    const { mounts, store, state } = this.options;
    const scan = await this.options.scanner.scan(signal);
    for (const path of scan.files.keys()) await mounts.files.remove(store.path + path);
    Object.assign(state, { revision: "0", files: {}, refused: {}, wanted: [] });
  }

  /** A read-only copy is looked at only where processes are not kept from changing it. */
  private async scan(signal: AbortSignal): Promise<Scan | undefined> {
    const { store, mounts, scanner } = this.options;
    return store.readOnly && mounts.areKept ? undefined : scanner.scan(signal);
  }

  private async changesIn(scan: Scan, signal: AbortSignal): Promise<Change[]> {
    const { state, store } = this.options;
    // First what goes: a file may stand where a directory was, or the other way round.
    const changes = scan.isWhole ? await this.deletionsIn(scan) : [];
    if (!scan.isWhole) this.note("there are too many files in it; not all of them are looked at");
    for (const [path, file] of scan.files) {
      const mark = file.kind === "text" ? file.sha256 : file.why;
      const base = state.files[path] ?? "";
      if (mark === base || state.refused[path] === mark) continue;
      if (store.readOnly) {
        this.putBack(path, base);
        continue;
      }
      if (file.kind === "other") {
        this.refuse(path, mark, file.why);
        continue;
      }
      const content = await this.read(path, signal);
      if (content !== undefined) changes.push({ path, baseSha256: base, content, sha256: digestOf(content) });
    }
    return changes;
  }

  /** What could not be looked at is not gone. */
  private async deletionsIn(scan: Scan): Promise<Change[]> {
    const { state, store, mounts } = this.options;
    const deletions: Change[] = [];
    for (const [path, baseSha256] of Object.entries(state.files)) {
      if (scan.files.has(path)) continue;
      const isGone = await mounts.files.stat(store.path + path).then(
        ({ type }) => type !== "file",
        (error) => ["not_found", "not_a_directory"].includes((error as FileError).code),
      );
      if (!isGone) continue;
      if (store.readOnly) this.putBack(path, baseSha256);
      else deletions.push({ path, baseSha256, sha256: "" });
    }
    for (const path of Object.keys(state.refused)) if (!scan.files.has(path)) delete state.refused[path];
    return deletions;
  }

  /** Sends the changes, and hears what is in the store. Gives how many of them met with something newer. */
  private async exchange(
    sync: Sync,
    changes: readonly Change[],
    wanted: Set<string>,
    signal: AbortSignal,
  ): Promise<number> {
    const { state, store } = this.options;
    let conflicts = 0;
    for (const batch of batchesOf(changes)) {
      signal.throwIfAborted();
      const response = await sync({
        memoryStoreId: store.memoryStoreId,
        revision: BigInt(state.revision),
        changes: batch.map(wireOf),
      });
      for (const [index, { outcome, message }] of response.results.entries()) {
        const change = batch[index];
        if (change === undefined) continue;
        if (outcome === MemoryChangeOutcome.STORED) this.agree(change);
        else if (outcome === MemoryChangeOutcome.CONFLICT) {
          conflicts += 1;
          wanted.add(change.path);
          await this.setAside(change);
        } else this.refuse(change.path, change.sha256, message);
      }
      if (response.hasIndex) await this.compare(response, wanted);
      // Both or neither are saved: what the index asks for is not asked for again.
      state.wanted = [...wanted];
      state.revision = String(response.revision);
    }
    return conflicts;
  }

  private agree({ path, content, sha256 }: Change): void {
    const { state } = this.options;
    delete state.refused[path];
    if (content === undefined) delete state.files[path];
    else state.files[path] = sha256;
  }

  /** M2. */
  private async setAside({ path, content, sha256 }: Change): Promise<void> {
    const { state, store, mounts } = this.options;
    delete state.files[path];
    if (content === undefined) {
      this.note(
        `${store.path}${path} was deleted here, but had been changed elsewhere meanwhile: it is back, as it is in the store`,
      );
      return;
    }
    const aside = asideName(path, sha256);
    try {
      await mounts.files.rename(store.path + path, store.path + aside);
    } catch (error) {
      // It went meanwhile.
      if ((error as FileError).code === "not_found") return;
      throw error;
    }
    this.note(
      `${store.path}${path} had been changed elsewhere meanwhile: the store's text stands there now, and what was written here is in ${store.path}${aside}. Merge what is needed, then delete that file`,
    );
  }

  /** Where nothing keeps processes from changing a read-only copy. */
  private note(text: string): void {
    this.notes.push(text);
    this.options.note?.(text);
  }

  private putBack(path: string, base: string): void {
    const { state, store } = this.options;
    if (base === "" || state.wanted.includes(path)) return;
    state.wanted.push(path);
    this.note(`${store.path}${path} is read-only: what was done to it here is undone`);
  }

  private refuse(path: string, mark: string, why: string): void {
    const { state, store } = this.options;
    state.refused[path] = mark;
    this.note(`${store.path}${path} is not saved in the memory store: ${why}`);
  }

  /** What is in the store and not here is wanted; what is here as it was and not in the store goes. */
  private async compare({ index }: SyncMemoryResponse, wanted: Set<string>): Promise<void> {
    const { state, store, mounts } = this.options;
    const there = new Set<string>();
    for (const { path, sha256 } of index) {
      there.add(path);
      if (state.files[path] !== Buffer.from(sha256).toString("hex")) wanted.add(path);
    }
    for (const [path, sha256] of Object.entries(state.files)) {
      if (there.has(path)) continue;
      const now = await this.read(path, undefined);
      // Changed here meanwhile: the next round makes it again. M3.
      delete state.files[path];
      if (now === undefined || digestOf(now) !== sha256) continue;
      try {
        await mounts.files.remove(store.path + path);
        await this.removeEmptyAbove(path);
      } catch (error) {
        this.note(
          `${store.path}${path} is not in the store any more and could not be removed: ${messageOf(error)}`,
        );
      }
    }
  }

  private async removeEmptyAbove(path: string): Promise<void> {
    const { store, mounts } = this.options;
    for (let dir = posix.dirname(path); dir !== "/"; dir = posix.dirname(dir))
      if (!(await mounts.files.removeEmpty(store.path + dir))) return;
  }

  private async fetch(
    sync: Sync,
    wanted: Set<string>,
    scan: Scan | undefined,
    signal: AbortSignal,
  ): Promise<void> {
    const { state, store } = this.options;
    const failed: string[] = [];
    for (let todo = [...wanted]; todo.length > 0; ) {
      signal.throwIfAborted();
      state.wanted = [...failed, ...todo];
      const asked = todo.slice(0, MAX_WANTED);
      const { texts } = await sync({
        memoryStoreId: store.memoryStoreId,
        revision: BigInt(state.revision),
        wantedPaths: asked,
      });
      const last = texts.at(-1)?.path;
      // Those before the last one that came and did not come themselves are gone; those behind it did not fit.
      const done = last === undefined ? asked.length : asked.indexOf(last) + 1;
      const came = new Map(texts.map(({ path, content }) => [path, content]));
      for (const path of asked.slice(0, done)) {
        const content = came.get(path);
        if (content !== undefined && !(await this.putDown(path, content, scan))) failed.push(path);
      }
      todo = todo.slice(done);
    }
    // Tried again the next time.
    state.wanted = failed;
  }

  /** False when it could not be written. */
  private async putDown(path: string, content: Uint8Array, scan: Scan | undefined): Promise<boolean> {
    const { state, store, mounts } = this.options;
    const at = store.path + path;
    if (!store.readOnly && !(await this.mayBeReplaced(path, content, scan?.files.get(path)))) return false;
    try {
      await mounts.files.writeFile(at, content, { mode: store.readOnly ? 0o644 : 0o600 });
      if (store.readOnly) await makeWayPassable(mounts.files, store.path, at);
      state.files[path] = digestOf(content);
      delete state.refused[path];
      return true;
    } catch (error) {
      this.note(`${at} could not be brought up to date: ${messageOf(error)}`);
      return false;
    }
  }

  /** M3. What the store did not want is no reason to lose it. */
  private async mayBeReplaced(
    path: string,
    content: Uint8Array,
    before: ScannedFile | undefined,
  ): Promise<boolean> {
    const { state, store, mounts } = this.options;
    const now = await mounts.files.stat(store.path + path).catch(() => undefined);
    if (now === undefined) return true;
    if (before?.kind !== "text" || now.size !== before.size || now.mtimeMs !== before.mtimeMs) return false;
    const { sha256 } = before;
    if (sha256 !== state.files[path] && sha256 !== digestOf(content))
      await this.setAside({ path, baseSha256: "", sha256, content });
    return true;
  }

  private async read(path: string, signal: AbortSignal | undefined): Promise<Uint8Array | undefined> {
    const { mounts, store } = this.options;
    const chunks: Uint8Array[] = [];
    let bytes = 0;
    try {
      for await (const chunk of mounts.files.readFile(
        store.path + path,
        signal === undefined ? {} : { signal },
      )) {
        bytes += chunk.byteLength;
        // It grew since it was looked at.
        if (bytes > MAX_FILE_BYTES) return undefined;
        chunks.push(chunk);
      }
    } catch {
      signal?.throwIfAborted();
      return undefined;
    }
    return Buffer.concat(chunks);
  }
}

/** At least one, without changes: what the store has is to be heard anyway. */
function* batchesOf(changes: readonly Change[]): Generator<Change[]> {
  let batch: Change[] = [];
  let bytes = 0;
  for (const change of changes) {
    const more = change.content?.byteLength ?? 0;
    if (batch.length >= MAX_CHANGES || (batch.length > 0 && bytes + more > MAX_CHANGE_BYTES)) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(change);
    bytes += more;
  }
  yield batch;
}

function wireOf({ path, baseSha256, content }: Change): MessageInitShape<typeof MemoryChangeSchema> {
  return content === undefined ? { path, baseSha256 } : { path, baseSha256, content };
}

const MAX_NAME_BYTES = 255;

/** `notes.md` → `notes.conflict-1a2b3c4d.md`, cut where no file could be called so. */
function asideName(path: string, sha256: string): string {
  const { dir, name, ext } = posix.parse(path);
  const end = `.conflict-${sha256.slice(0, 8)}${ext}`;
  let start = name;
  while (start !== "" && Buffer.byteLength(start + end) > MAX_NAME_BYTES)
    start = [...start].slice(0, -1).join("");
  return posix.join(dir, start + end);
}

function digestOf(content: Uint8Array): string {
  return createHash("sha256").update(content).digest("hex");
}
