/** What sessions are given of files: copies of their own, at places below one directory. */
import { invalidField, notFound } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNul } from "../../kit/nul.ts";
import type { FileAttachments } from "../ports/files.ts";
import type { FileStore } from "../store/files.ts";
import { checkPlaces, MAX_FILES_PER_SESSION, mountPathOf } from "./rules.ts";

export function createFileAttachments(files: Pick<FileStore, "findAll">): FileAttachments {
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
    checkPlace(mountPath, taken) {
      if (taken.length >= MAX_FILES_PER_SESSION)
        throw invalidField("resource", `a session may be given ${MAX_FILES_PER_SESSION} files`);
      const places = [...taken, mountPath].map((path) => ({ path, field: "resource.file.mount_path" }));
      checkPlaces(places);
    },
  };
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
