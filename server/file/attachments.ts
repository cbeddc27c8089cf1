/** What sessions are given of files: copies of their own, at places below one directory. */
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNul } from "../../kit/nul.ts";
import type { FileAttachments } from "../ports/files.ts";
import type { BlobStore } from "../store/blobs.ts";
import type { FileStore } from "../store/files.ts";
import { checkPlaces, MAX_FILES_PER_SESSION, mountPathOf } from "./rules.ts";

export function createFileAttachments(
  files: Pick<FileStore, "findAll">,
  blobs: Pick<BlobStore, "read">,
): FileAttachments {
  return {
    async attach(inputs, workspaceId, taken = []) {
      const [beyond] = inputs.slice(Math.max(0, MAX_FILES_PER_SESSION - taken.length));
      if (beyond !== undefined)
        throw invalidField(beyond.field, `a session may be given ${MAX_FILES_PER_SESSION} files`);
      const found = await findAll(files, inputs, workspaceId);
      const attachments = inputs.map(({ file, field }) => {
        if (!found.has(file.fileId)) throw notFound("file", file.fileId);
        const fileId = newId("file");
        const mountPath = mountPathOf(file.mountPath, file.fileId, `${field}.mount_path`);
        return { attached: { fileId, mountPath }, copy: { fileId, originalId: file.fileId } };
      });
      checkPlaces([
        ...taken.map((path) => ({ path, field: "resources" })),
        ...attachments.map(({ attached }, at) => ({
          path: attached.mountPath,
          field: `${inputs[at]!.field}.mount_path`,
        })),
      ]);
      return attachments;
    },
    text: (request, field) => textOf(files, blobs, request, field),
    bytes: (request, field) => bytesOf(files, blobs, request, field),
    checkPlace(mountPath, taken) {
      if (taken.length >= MAX_FILES_PER_SESSION)
        throw invalidField("resource", `a session may be given ${MAX_FILES_PER_SESSION} files`);
      const places = [...taken, mountPath].map((path) => ({ path, field: "resource.file.mount_path" }));
      checkPlaces(places);
    },
  };
}

/** Of UTF-8, at most, for each character of a text. */
const BYTES_PER_CHAR = 3;

async function textOf(
  files: Pick<FileStore, "findAll">,
  blobs: Pick<BlobStore, "read">,
  { fileId, workspaceId, maxChars }: Parameters<FileAttachments["text"]>[0],
  field: string,
): Promise<string> {
  const tooLong = invalidField(field, `has more than ${maxChars} characters`);
  const mayRead = (sizeBytes: number) => {
    if (sizeBytes > maxChars * BYTES_PER_CHAR) throw tooLong;
  };
  const text = decoded(await bytesOf(files, blobs, { fileId, workspaceId, mayRead }, field));
  if (text === undefined) throw invalidField(field, "is no text in UTF-8");
  if (text.length > maxChars) throw tooLong;
  return text;
}

async function bytesOf(
  files: Pick<FileStore, "findAll">,
  blobs: Pick<BlobStore, "read">,
  { fileId, workspaceId, mayRead }: Parameters<FileAttachments["bytes"]>[0],
  field: string,
): Promise<Uint8Array> {
  refuseNul(fileId, field);
  const [file] = await files.findAll([fileId], workspaceId);
  if (file === undefined) {
    const { message, metadata } = notFound("file", fileId);
    throw new TendonError("NOT_FOUND", message, { ...metadata, field });
  }
  mayRead(Number(file.sizeBytes));
  const chunks: Uint8Array[] = [];
  for await (const chunk of blobs.read({ workspaceId, sha256: file.sha256 })) chunks.push(chunk);
  return Buffer.concat(chunks);
}

function decoded(bytes: Uint8Array): string | undefined {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

async function findAll(
  files: Pick<FileStore, "findAll">,
  inputs: Parameters<FileAttachments["attach"]>[0],
  workspaceId: string,
): Promise<Set<string>> {
  for (const { file, field } of inputs) refuseNul(file, field);
  if (inputs.length === 0) return new Set();
  const ids = inputs.map(({ file }) => file.fileId);
  return new Set((await files.findAll(ids, workspaceId)).map(({ id }) => id));
}
