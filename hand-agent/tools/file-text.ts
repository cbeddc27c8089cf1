/** What the file tools tell the model, and the bounded read that two of them share. */
import { FileError, type FileErrorCode, type Hand } from "../drivers/driver.ts";
import { InputError, MAX_FILE_BYTES } from "./tool.ts";

const TEXTS: Readonly<Record<Exclude<FileErrorCode, "outside" | "failed">, string>> = {
  not_found: "no such file or directory",
  not_a_directory: "not a directory",
  is_a_directory: "is a directory",
  not_a_file: "not a regular file",
  permission: "permission denied",
  too_many_links: "too many levels of symbolic links",
  no_space: "no space left on device",
};

/** `given` is the path as the model wrote it. */
export function fileErrorText(tool: string, given: string, error: FileError): string {
  if (error.code === "outside")
    return `path ${JSON.stringify(given)} is outside the session's working directory`;
  return `${tool}: ${given}: ${error.code === "failed" ? error.message : TEXTS[error.code]}`;
}

/** Runs `use` and turns a file's refusal into text for the model. */
export async function withFileErrors<T>(tool: string, given: string, use: () => Promise<T>): Promise<T> {
  try {
    return await use();
  } catch (error) {
    if (error instanceof FileError) throw new InputError(fileErrorText(tool, given, error));
    throw error;
  }
}

/** The whole file, if it is not too big; `hint` ends the complaint about its size. */
export async function readWhole(
  hand: Hand,
  file: { tool: string; given: string; path: string; hint: string },
  signal: AbortSignal,
): Promise<Buffer> {
  const tooBig = (bytes: number) =>
    new InputError(
      `${file.tool}: ${file.given} is ${bytes} bytes, exceeds ${MAX_FILE_BYTES}-byte limit${file.hint}`,
    );
  const stat = await hand.stat(file.path);
  if (stat.type === "directory") throw new FileError("is_a_directory", file.path, "is a directory");
  if (stat.type !== "file") throw new FileError("not_a_file", file.path, "not a regular file");
  if (stat.size > MAX_FILE_BYTES) throw tooBig(stat.size);
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of hand.readFile(file.path, { signal })) {
    bytes += chunk.byteLength;
    if (bytes > MAX_FILE_BYTES) throw tooBig(bytes);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}
