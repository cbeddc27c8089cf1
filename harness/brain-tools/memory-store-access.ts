/** One store in the name of the session, for one call of the memory tool: what it changes carries the call's event id. */
import { isTendonError } from "../../kit/errors.ts";
import type { AttachedMemoryStore, Memory, MemoryVersion } from "../../proto/gen/tendon/v1/memory_pb.js";
import { MemoryView } from "../../proto/gen/tendon/v1/memory_pb.js";
import type { BrainCall } from "./brain-tool.ts";

const CALL_WITHIN_MS = 15_000;
const PAGE = 100;

export class StoreAccess {
  private readonly call: BrainCall;
  private readonly memoryStoreId: string;
  private readonly signal: AbortSignal;

  constructor(call: BrainCall, { memoryStoreId }: AttachedMemoryStore, signal: AbortSignal) {
    this.call = call;
    this.memoryStoreId = memoryStoreId;
    this.signal = signal;
  }

  /** With its text; undefined when there is none. */
  async find(path: string): Promise<Memory | undefined> {
    const view = MemoryView.FULL;
    return unlessMissing(
      async () => (await this.client.getMemory({ ...this.base, path, view }, this.within)).memory,
    );
  }

  /** All below this directory ("" for the store), by path, without their texts. */
  async list(path: string): Promise<Memory[]> {
    const memories: Memory[] = [];
    for (let pageToken = ""; ; ) {
      const request = { ...this.base, pathPrefix: `${path}/`, pageSize: PAGE, pageToken };
      const { entries, nextPageToken } = await this.client.listMemories(request, this.within);
      for (const { kind } of entries) if (kind.case === "memory") memories.push(kind.value);
      if (nextPageToken === "") return memories;
      pageToken = nextPageToken;
    }
  }

  /** Whether an earlier run of the call has changed something. */
  async wasDone(): Promise<boolean> {
    return (await this.firstChange()) !== undefined;
  }

  /** Of an earlier run of the call. */
  private async firstChange(): Promise<MemoryVersion | undefined> {
    const request = { ...this.base, requestId: this.call.eventId, view: MemoryView.BASIC };
    return (await unlessMissing(() => this.client.getMemoryVersion(request, this.within)))?.memoryVersion;
  }

  async create(path: string, content: string): Promise<void> {
    await this.client.createMemory(
      { ...this.base, requestId: this.call.eventId, path, content },
      this.within,
    );
  }

  /** MEMORY_PRECONDITION_FAILED when it is not what was found any more. */
  async update({ id: memoryId, contentSha256 }: Memory, content: string): Promise<void> {
    const change = { memoryId, content, expectedContentSha256: contentSha256 };
    await this.client.updateMemory({ ...this.base, requestId: this.call.eventId, ...change }, this.within);
  }

  /** A file, or a directory with all in it. Gives how many files that were; 0 when there is none. */
  delete(path: string): Promise<number> {
    return this.each(path, path, async ({ id: memoryId }, requestId) => {
      await unlessMissing(() => this.client.deleteMemory({ ...this.base, requestId, memoryId }, this.within));
    });
  }

  /** As `delete`. */
  rename(path: string, newPath: string): Promise<number> {
    return this.each(path, newPath, async ({ id: memoryId, path: old }, requestId) => {
      const change = { memoryId, newPath: newPath + old.slice(path.length) };
      await this.client.updateMemory({ ...this.base, requestId, ...change }, this.within);
    });
  }

  /**
   * The first change has the call's id, by which a later run knows that it goes on with what was begun. `changedPath` is
   * where a single file's change leaves its version.
   */
  private async each(
    path: string,
    changedPath: string,
    change: (memory: Memory, requestId: string) => Promise<void>,
  ): Promise<number> {
    const { eventId } = this.call;
    const first = await this.firstChange();
    // That was all of it: what stands there now is another file.
    if (first?.path === changedPath) return 1;
    const begun = first !== undefined;
    const file = await this.find(path);
    const todo = file === undefined ? await this.list(path) : [file];
    for (const [index, memory] of todo.entries()) {
      await change(memory, index === 0 && !begun ? eventId : `${eventId}:${memory.id}`);
    }
    return todo.length === 0 && begun ? 1 : todo.length;
  }

  private get client() {
    return this.call.server.memory;
  }

  private get base() {
    const { sessionId, lease } = this.call;
    return { memoryStoreId: this.memoryStoreId, session: { sessionId, lease: lease.proof } };
  }

  private get within() {
    return { signal: this.signal, deadlineMs: CALL_WITHIN_MS };
  }
}

async function unlessMissing<T>(ask: () => PromiseLike<T>): Promise<T | undefined> {
  try {
    return await ask();
  } catch (error) {
    const isMissing =
      isTendonError(error, "NOT_FOUND") && /^memory( version)?$/.test(error.metadata.resource ?? "");
    if (isMissing) return undefined;
    throw error;
  }
}
