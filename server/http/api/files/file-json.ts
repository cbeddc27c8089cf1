/** A file as existing clients know it (pure). */
import type { File } from "../../../../proto/gen/tendon/v1/file_pb.js";
import { timeJson } from "../time-json.ts";

export function fileJson({ id, filename, mimeType, sizeBytes, createdAt, expiresAt, sessionId }: File) {
  return {
    type: "file",
    id,
    filename,
    mime_type: mimeType,
    size_bytes: Number(sizeBytes),
    created_at: timeJson(createdAt),
    // Also what was uploaded: who may see it has it.
    downloadable: true,
    expires_at: timeJson(expiresAt),
    scope: sessionId === "" ? null : { type: "session", id: sessionId },
  };
}
