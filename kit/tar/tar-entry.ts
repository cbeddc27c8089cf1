/** What a tar archive holds, as both ends of a copy speak of it. */

export interface TarEntry {
  /** Relative, parts separated by "/"; of a directory without one at its end. "." is the directory that was asked for. */
  readonly name: string;
  readonly type: "file" | "directory" | "symlink" | "hardlink";
  /** Bytes of a file; 0 for the others. */
  readonly size: number;
  /** Permission bits, at most 0o777. */
  readonly mode: number;
  readonly mtimeMs: number;
  /** Where a symbolic link leads, or the name of the earlier entry that a hard link is the same as. */
  readonly linkTarget: string;
}

export const TAR_BLOCK_BYTES = 512;
/** Bounds of what an archive may make its reader hold in memory. */
export const MAX_TAR_NAME_BYTES = 4_096;
export const MAX_TAR_EXTENSION_BYTES = 64 * 1024;

/** The archive cannot be read, or holds what cannot be unpacked; the message is for people and names the entry. */
export class TarError extends Error {
  override readonly name = "TarError";
}

/**
 * The parts of a name, for whoever unpacks: none for the directory itself. Throws TarError for a name that could lead
 * out of that directory, or that no file can have.
 */
export function partsOfTarName(name: string): string[] {
  if (name.includes("\0")) throw new TarError(`a name holds a NUL character`);
  if (Buffer.byteLength(name) > MAX_TAR_NAME_BYTES)
    throw new TarError(`a name is longer than ${MAX_TAR_NAME_BYTES} bytes`);
  if (name.startsWith("/")) throw new TarError(`${told(name)} is an absolute name`);
  const parts = name.split("/").filter((part) => part !== "" && part !== ".");
  if (parts.includes("..")) throw new TarError(`${told(name)} leads out of the archive's directory`);
  return parts;
}

const MAX_TOLD_CHARS = 200;

/** A name of an archive in a message. */
export function told(name: string): string {
  return JSON.stringify(name.length > MAX_TOLD_CHARS ? `${name.slice(0, MAX_TOLD_CHARS)}…` : name);
}
