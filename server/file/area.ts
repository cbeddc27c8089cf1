/** Puts the parts that know files together. */
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import { bindService } from "../../kit/rpc/service.ts";
import { FileService } from "../../proto/gen/tendon/v1/file_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { FileAttachments } from "../ports/files.ts";
import type { FileStore } from "../store/files.ts";
import { createFileAttachments } from "./attachments.ts";
import { type FileServiceDeps, FileServiceHandler } from "./service.ts";

export interface FileArea extends Area {
  readonly attachments: FileAttachments;
}

const EXPIRE_EVERY_MS = 60_000;
const EXPIRE_AT_ONCE = 100;

export function createFileArea(deps: FileServiceDeps & { log: Logger }): FileArea {
  const { files } = deps.store;
  return {
    name: "file",
    services: [bindService(FileService, new FileServiceHandler(deps))],
    parts: [new FileExpiry(files, deps.clock, deps.log)],
    attachments: createFileAttachments(files),
  };
}

/** Deletes files whose time is over. Any replica does it; each takes what no other has. */
class FileExpiry implements Service {
  readonly name = "file expiry";
  private readonly files: Pick<FileStore, "deleteExpired">;
  private readonly clock: Clock;
  private readonly log: Logger;
  private stopCalling: (() => void) | undefined;
  private running: Promise<void> | undefined;

  constructor(files: Pick<FileStore, "deleteExpired">, clock: Clock, log: Logger) {
    this.files = files;
    this.clock = clock;
    this.log = log;
  }

  async start(): Promise<void> {
    this.stopCalling = this.clock.every(EXPIRE_EVERY_MS, () => {
      this.running ??= this.run().finally(() => {
        this.running = undefined;
      });
    });
  }

  async stop(): Promise<void> {
    this.stopCalling?.();
    await this.running;
  }

  private async run(): Promise<void> {
    try {
      await this.files.deleteExpired(EXPIRE_AT_ONCE);
    } catch (error) {
      this.log.warn({ error: messageOf(error) }, "files whose time is over could not be deleted");
    }
  }
}
