/**
 * Files that a session was given, in one hand: fetched once, put in place whole, and taken away again with the session's.
 * Whether something has changed is the server's to say (or a new connection's, on which it may have been missed): calls
 * ask nobody.
 */
import { createHash } from "node:crypto";
import type { HandFile } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { FileError, HandMounts } from "../drivers/driver.ts";
import { UPLOADS_DIR } from "./mount-config.ts";
import { makeWayPassable } from "./passable-dirs.ts";

/** By path, the digest of what stands there. */
export type UploadState = Record<string, string>;

export interface UploadSource {
  list(signal: AbortSignal): Promise<readonly HandFile[]>;
  read(sha256: string, signal: AbortSignal): AsyncIterable<Uint8Array>;
}

const MODE = 0o444;

/** Rejects when the server cannot be reached; what was done by then stays. `save` is told after each file. */
export async function bringUploadsUpToDate(
  { files }: HandMounts,
  state: UploadState,
  source: UploadSource,
  { signal, save }: { signal: AbortSignal; save: () => Promise<void> },
): Promise<void> {
  const wanted = await source.list(signal);
  const byPath = new Map(wanted.map((file) => [file.path, file]));
  for (const path of Object.keys(state)) {
    if (byPath.get(path)?.sha256 === state[path]) continue;
    await files.remove(path);
    await removeEmptyAbove(files, path);
    delete state[path];
    await save();
  }
  for (const { path, sha256 } of wanted) {
    if (state[path] === sha256 || !path.startsWith(`${UPLOADS_DIR}/`)) continue;
    await files.writeFile(path, verified(source.read(sha256, signal), sha256), { mode: MODE, signal });
    await makeWayPassable(files, UPLOADS_DIR, path);
    state[path] = sha256;
    await save();
  }
}

/** Nothing is put in place that is not what was announced. */
async function* verified(bytes: AsyncIterable<Uint8Array>, sha256: string): AsyncGenerator<Uint8Array> {
  const hash = createHash("sha256");
  for await (const chunk of bytes) {
    hash.update(chunk);
    yield chunk;
  }
  if (hash.digest("hex") !== sha256) throw new Error("a file did not come whole");
}

async function removeEmptyAbove(files: HandMounts["files"], path: string): Promise<void> {
  for (let at = path.lastIndexOf("/"); at > UPLOADS_DIR.length; at = path.lastIndexOf("/", at - 1)) {
    const isGone = await files.removeEmpty(path.slice(0, at)).catch((error) => {
      if ((error as FileError).code === "not_found") return true;
      throw error;
    });
    if (!isGone) return;
  }
}
