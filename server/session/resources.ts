/** Resources of sessions, as they are kept (pure). */
import { create, toJson } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { newId } from "../../kit/ids.ts";
import { type SessionResource, SessionResourceSchema } from "../../proto/gen/tendon/v1/session_pb.js";
import type { FileAttachment } from "../ports/files.ts";

export function fileResource({ attached }: FileAttachment, nowMs: number): SessionResource {
  return create(SessionResourceSchema, {
    id: newId("sessionResource"),
    kind: { case: "file", value: { ...attached, createdAt: timestampFromMs(nowMs) } },
  });
}

/** JSON text of the list. */
export function resourcesText(resources: readonly SessionResource[]): string {
  return JSON.stringify(resources.map((resource) => toJson(SessionResourceSchema, resource)));
}
