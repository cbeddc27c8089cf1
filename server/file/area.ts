/** Puts the parts that know files together. */
import type { Logger } from "../../kit/log.ts";
import { Rounds } from "../../kit/rounds.ts";
import { bindService } from "../../kit/rpc/service.ts";
import { FileService } from "../../proto/gen/tendon/v1/file_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { FileAttachments } from "../ports/files.ts";
import { createFileAttachments } from "./attachments.ts";
import { type FileServiceDeps, FileServiceHandler } from "./service.ts";

export interface FileArea extends Area {
  readonly attachments: FileAttachments;
}

const EXPIRE_EVERY_MS = 60_000;
const EXPIRE_AT_ONCE = 100;

export function createFileArea(deps: FileServiceDeps & { log: Logger }): FileArea {
  const { files, blobs } = deps.store;
  return {
    name: "file",
    services: [bindService(FileService, new FileServiceHandler(deps))],
    // Any replica does it; each takes what no other has.
    parts: [
      new Rounds({
        name: "file expiry",
        everyMs: EXPIRE_EVERY_MS,
        round: () => files.deleteExpired(EXPIRE_AT_ONCE),
        failed: "files whose time is over could not be deleted",
        clock: deps.clock,
        log: deps.log,
      }),
    ],
    attachments: createFileAttachments(files, blobs),
  };
}
