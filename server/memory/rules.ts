/** What names, paths and texts of memories may be, and how stores are called in hands. Errors name the field. */
import { invalidField } from "../../kit/errors.ts";
import { type AttachedMemoryStore, MemoryAccess } from "../../proto/gen/tendon/v1/memory_pb.js";
import { MAX_CONTENT_BYTES } from "../store/memories.ts";

const MAX_PATH_BYTES = 1024;
const MAX_PARTS = 20;
/** Stores are directories in hands. */
const MAX_PART_BYTES = 255;
const CONTROL = /\p{Cc}/u;
/** Control and format characters, and the two separators that some programs take for line ends. */
const UNSEEN = /[\p{Cc}\p{Cf}\u2028\u2029]/u;
const MAX_SLUG_CHARS = 64;

export const MOUNT_ROOT = "/mnt/memory";
export const MAX_STORES_PER_SESSION = 8;

/** What is wrong with the path, or undefined. */
export function pathProblem(path: string): string | undefined {
  if (!path.startsWith("/")) return "must begin with /";
  if (Buffer.byteLength(path) > MAX_PATH_BYTES) return `must have at most ${MAX_PATH_BYTES} bytes`;
  if (UNSEEN.test(path)) return "must hold no control or format characters";
  if (path.normalize("NFC") !== path) return "must be composed Unicode (NFC)";
  const parts = path.slice(1).split("/");
  if (parts.length > MAX_PARTS) return `must have at most ${MAX_PARTS} parts`;
  if (parts.some((part) => Buffer.byteLength(part) > MAX_PART_BYTES))
    return `must have parts of at most ${MAX_PART_BYTES} bytes, as names of files are`;
  if (parts.some((part) => part === "" || part === "." || part === ".."))
    return "must have no empty part, no . and no ..";
  return undefined;
}

export function checkPath(path: string, field: string): void {
  const problem = pathProblem(path);
  if (problem !== undefined) throw invalidField(field, problem);
}

/** Empty, or a directory: `/notes/`. */
export function checkPrefix(prefix: string): void {
  if (prefix === "" || prefix === "/") return;
  if (!prefix.endsWith("/")) throw invalidField("path_prefix", "must end with /");
  checkPath(prefix.slice(0, -1), "path_prefix");
}

export function contentProblem(content: string): string | undefined {
  if (Buffer.byteLength(content) > MAX_CONTENT_BYTES) return `must have at most ${MAX_CONTENT_BYTES} bytes`;
  return content.includes("\0") ? "must not hold a NUL character" : undefined;
}

export function checkContent(content: string): void {
  const problem = contentProblem(content);
  if (problem !== undefined) throw invalidField("content", problem);
}

export function checkStoreName(name: string | undefined): void {
  if (name === undefined) return;
  if (CONTROL.test(name)) throw invalidField("name", "must hold no control characters");
  if (name.trim() === "") throw invalidField("name", "must not be blank");
}

/** One of a memory's two names. */
export function checkName({ memoryId, path }: { memoryId: string; path: string }): void {
  if ((memoryId === "") === (path === "")) throw invalidField("memory_id", "give either memory_id or path");
  if (path !== "") checkPath(path, "path");
}

/** "Team notes (2026)" → `team-notes-2026`. */
export function slugOf(name: string): string {
  const slug = name
    .normalize("NFKD")
    .replaceAll(/\p{M}/gu, "")
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, "-")
    .slice(0, MAX_SLUG_CHARS)
    .replaceAll(/^-|-$/g, "");
  return slug === "" ? "memory" : slug;
}

/** In the order of asking; a name that is taken gets a number. */
export function mountPaths(names: readonly string[]): string[] {
  const taken = new Set<string>();
  return names.map((name) => {
    const slug = slugOf(name);
    let free = slug;
    for (let number = 2; taken.has(free); number += 1) free = `${slug}-${number}`;
    taken.add(free);
    return `${MOUNT_ROOT}/${free}`;
  });
}

export function isReadOnly({ access }: Pick<AttachedMemoryStore, "access">): boolean {
  return access === MemoryAccess.READ_ONLY;
}

/**
 * A listing's entries: with depth 1 what lies deeper is told by the directory that it is in. `memories` are sorted by
 * path; so is the answer.
 */
export function entriesAt<T extends { readonly path: string }>(
  memories: readonly T[],
  prefix: string,
  depth: number,
): (T | string)[] {
  if (depth === 0) return [...memories];
  const start = prefix === "" ? 1 : prefix.length;
  const entries: (T | string)[] = [];
  for (const memory of memories) {
    const end = memory.path.indexOf("/", start);
    if (end < 0) entries.push(memory);
    else {
      const directory = memory.path.slice(0, end + 1);
      if (entries.at(-1) !== directory) entries.push(directory);
    }
  }
  return entries;
}
