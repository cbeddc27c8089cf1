/** Bytes that the server keeps, on their way to a file of this machine. */
import { createWriteStream } from "node:fs";
import { rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { StartupError } from "../kit/program.ts";
import { EXIT_FAILED } from "./command.ts";

/**
 * Writes them to `to`, or into that folder under `name`; "-" is standard output. Gives where they are. What is there already is
 * not replaced, and what does not come whole is not left.
 */
export async function writeTo(
  to: string,
  name: string,
  chunks: AsyncIterable<{ readonly chunk: Uint8Array }>,
): Promise<string> {
  async function* bytes() {
    for await (const { chunk } of chunks) yield chunk;
  }
  if (to === "-") {
    await pipeline(bytes, process.stdout, { end: false });
    return to;
  }
  const isFolder = await stat(to).then(
    (found) => found.isDirectory(),
    () => false,
  );
  // A name may be a path, of a file that a session has left: only its end is one here.
  const path = isFolder ? join(to, name.split("/").at(-1) || "file") : to;
  try {
    await pipeline(bytes, createWriteStream(path, { flags: "wx", mode: 0o644 }));
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "EEXIST") throw new StartupError(`${path} is there already`, EXIT_FAILED);
    if (code === "ENOENT") throw new StartupError(`there is no folder for ${path}`, EXIT_FAILED);
    await rm(path, { force: true });
    throw error;
  }
  return path;
}
