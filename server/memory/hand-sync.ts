/**
 * Keeps a store's copy in a hand and the store itself alike. What was changed in the hand is taken in where the store
 * still has what the copy was made from; where it has not, the store stands and the hand is told (nothing is lost in
 * silence: the agent keeps the other text beside it).
 */
import { createHash } from "node:crypto";
import { isTendonError, type TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { type MemoryChange, MemoryChangeOutcome } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { MemorySync } from "../ports/memory.ts";
import type { MemoriesStore, MemoryClaim, MemoryWrite } from "../store/memories.ts";
import { contentProblem, pathProblem } from "./rules.ts";

/** Of an answer, whose message may have 3 MiB. */
const MAX_ANSWER_BYTES = 2.5 * 1024 * 1024;
const MAX_TEXT_BYTES = 1024 * 1024;
const INDEX_ENTRY_BYTES = 48;
const NO_REQUEST = { requestId: "", contentHash: new Uint8Array() };

interface Outcome {
  readonly outcome: MemoryChangeOutcome;
  readonly message?: string;
}

const STORED: Outcome = { outcome: MemoryChangeOutcome.STORED };
const CONFLICT: Outcome = { outcome: MemoryChangeOutcome.CONFLICT };

export function createMemorySync(memories: MemoriesStore): MemorySync {
  return {
    async sync(sessionId, { memoryStoreId, revision: known, changes, wantedPaths }) {
      const session = { sessionId, epoch: undefined, leaseId: undefined };
      const claim: MemoryClaim = { memoryStoreId, workspaceId: undefined, session };
      const write: MemoryWrite = { claim, actor: { kind: "session", id: sessionId }, request: NO_REQUEST };
      const results: Outcome[] = [];
      for (const change of changes) results.push(await takeIn(memories, write, change));
      const found = await memories.index(claim, known);
      const index = found?.rows ?? [];
      const indexBytes = index.reduce(
        (sum, { path }) => sum + Buffer.byteLength(path) + INDEX_ENTRY_BYTES,
        0,
      );
      const room = Math.min(MAX_TEXT_BYTES, MAX_ANSWER_BYTES - indexBytes);
      const texts = wantedPaths.length === 0 ? [] : await memories.texts(claim, wantedPaths, room);
      return {
        results,
        revision: found?.revision ?? known,
        hasIndex: found !== undefined,
        index,
        texts: texts.map(({ path, content }) => ({ path, content: Buffer.from(content, "utf8") })),
      };
    },
  };
}

async function takeIn(memories: MemoriesStore, write: MemoryWrite, change: MemoryChange): Promise<Outcome> {
  const { path, content: bytes } = change;
  const problem = pathProblem(path);
  if (problem !== undefined) return refused(`its path ${problem}`);
  const content = bytes === undefined ? undefined : textOf(bytes);
  if (bytes !== undefined && content === undefined) return refused("it is no UTF-8 text");
  const wrong = content === undefined ? undefined : contentProblem(content);
  if (wrong !== undefined) return refused(`its text ${wrong}`);
  try {
    if (content === undefined) return await remove(memories, write, change);
    return await put(memories, write, change, content);
  } catch (error) {
    return outcomeOf(error);
  }
}

async function remove(
  memories: MemoriesStore,
  write: MemoryWrite,
  { path, baseSha256: expectedSha256 }: MemoryChange,
): Promise<Outcome> {
  try {
    await memories.delete({ ...write, memoryId: "", path, expectedSha256 });
  } catch (error) {
    if (!isGone(error)) throw error;
  }
  return STORED;
}

/** A memory that others have deleted meanwhile is made again: an edit says more than a deletion. */
async function put(
  memories: MemoriesStore,
  write: MemoryWrite,
  { path, baseSha256: expectedSha256 }: MemoryChange,
  content: string,
): Promise<Outcome> {
  if (expectedSha256 !== "") {
    const change = { memoryId: "", path, content, newPath: undefined, expectedSha256 };
    try {
      await memories.update({ ...write, ...change });
      return STORED;
    } catch (error) {
      if (!isGone(error)) throw error;
    }
  }
  try {
    await memories.create({ ...write, memoryId: newId("memory"), path, content });
    return STORED;
  } catch (error) {
    if (!isTendonError(error, "MEMORY_PATH_CONFLICT") || error.metadata.conflicting_path !== path)
      throw error;
    const there = await memories.find(write.claim, { memoryId: "", path });
    return there.contentSha256 === digestOf(content) ? STORED : CONFLICT;
  }
}

/** What is the store's to say about this change; anything else fails the whole. */
function outcomeOf(error: unknown): Outcome {
  if (isTendonError(error, "MEMORY_PRECONDITION_FAILED") || isGone(error)) return CONFLICT;
  const reasons = ["MEMORY_PATH_CONFLICT", "MEMORY_STORE_ARCHIVED", "LIMIT_EXCEEDED", "ROLE_NOT_ALLOWED"];
  if (isTendonError(error) && reasons.includes(error.reason)) return refused(error.message);
  throw error;
}

function isGone(error: unknown): error is TendonError {
  return isTendonError(error, "NOT_FOUND") && error.metadata.resource === "memory";
}

function refused(message: string): Outcome {
  return { outcome: MemoryChangeOutcome.REFUSED, message };
}

function textOf(bytes: Uint8Array): string | undefined {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

function digestOf(content: string): string {
  return createHash("sha256").update(content, "utf8").digest("hex");
}
