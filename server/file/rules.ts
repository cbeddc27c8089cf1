/** What names of files may be, and where hands have them (pure). Errors name the field. */
import { invalidField, TendonError } from "../../kit/errors.ts";
import { refuseNul } from "../../kit/nul.ts";

export const MAX_FILE_BYTES = 500 * 1024 * 1024;
export const MAX_FILES_PER_SESSION = 500;
export const UPLOADS_DIR = "/mnt/session/uploads";

const MIN_EXPIRY_SECONDS = 3_600;
const DEFAULT_TYPE = "application/octet-stream";
/** Control and format characters, and the two separators that some programs take for line ends. */
const UNSEEN = /[\p{Cc}\p{Cf}\u2028\u2029]/u;
const MAX_PARTS = 20;
const MAX_PART_BYTES = 255;

export function checkFilename(filename: string, field: string): void {
  if (UNSEEN.test(filename)) throw invalidField(field, "must hold no control or format characters");
  if (/[/\\]/.test(filename)) throw invalidField(field, "must be a name without / and \\");
  if (filename.trim() === "" || filename === "." || filename === "..")
    throw invalidField(field, "must be a name");
}

/** The type to keep. */
export function mimeTypeOf(mimeType: string, field: string): string {
  refuseNul(mimeType, field);
  if (mimeType === "") return DEFAULT_TYPE;
  if (!/^[\x20-\x7e]+$/.test(mimeType)) throw invalidField(field, "must be a media type, such as text/csv");
  return mimeType;
}

export function checkExpiry(seconds: number, field: string): void {
  if (seconds !== 0 && seconds < MIN_EXPIRY_SECONDS)
    throw invalidField(field, `must be at least ${MIN_EXPIRY_SECONDS}`);
}

export function fileExpired(fileId: string): TendonError {
  return new TendonError("NOT_FOUND", `the time of the file "${fileId}" is over`, {
    resource: "file",
    id: fileId,
    error_code: "file_expired",
  });
}

/** `/data.csv` and `/mnt/session/uploads/data.csv` are both the latter; empty is the file's id there. */
export function mountPathOf(asked: string, fileId: string, field: string): string {
  if (asked === "") return `${UPLOADS_DIR}/${fileId}`;
  if (!asked.startsWith("/")) throw invalidField(field, "must begin with /");
  if (UNSEEN.test(asked)) throw invalidField(field, "must hold no control or format characters");
  const below = asked.startsWith(`${UPLOADS_DIR}/`) ? asked.slice(UPLOADS_DIR.length) : asked;
  const parts = below.slice(1).split("/");
  if (parts.length > MAX_PARTS) throw invalidField(field, `must have at most ${MAX_PARTS} parts`);
  if (parts.some((part) => part === "" || part === "." || part === ".."))
    throw invalidField(field, "must have no empty part, no . and no ..");
  if (parts.some((part) => Buffer.byteLength(part) > MAX_PART_BYTES))
    throw invalidField(field, `must have parts of at most ${MAX_PART_BYTES} bytes`);
  return UPLOADS_DIR + below;
}

/** Two files cannot stand at one place, nor one below another. */
export function checkPlaces(paths: readonly { readonly path: string; readonly field: string }[]): void {
  const taken = new Set<string>();
  const above = new Set<string>();
  for (const { path, field } of paths) {
    const parents = parentsOf(path);
    if (taken.has(path) || above.has(path) || parents.some((parent) => taken.has(parent)))
      throw invalidField(field, `another file of the session is at, above or below ${path}`);
    taken.add(path);
    for (const parent of parents) above.add(parent);
  }
}

function parentsOf(path: string): string[] {
  const parts = path.split("/").slice(0, -1);
  return parts.slice(1).map((_, at) => parts.slice(0, at + 2).join("/"));
}
