/** Puts the parts that know memory stores together. */
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import { bindService } from "../../kit/rpc/service.ts";
import { MemoryService } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { MemoryAttachments, MemorySync } from "../ports/memory.ts";
import type { MemoriesStore } from "../store/memories.ts";
import { createAttachments } from "./attachments.ts";
import { createMemorySync } from "./hand-sync.ts";
import { MemoryServiceHandler } from "./service.ts";
import type { MemoryServiceDeps } from "./store-handlers.ts";

export interface MemoryArea extends Area {
  readonly attachments: MemoryAttachments;
  readonly sync: MemorySync;
}

const PRUNE_EVERY_MS = 10 * 60_000;
const VERSIONS_KEPT_MS = 30 * 86_400_000;

export function createMemoryArea(deps: MemoryServiceDeps & { clock: Clock; log: Logger }): MemoryArea {
  const { memories, memoryStores } = deps.store;
  return {
    name: "memory",
    services: [bindService(MemoryService, new MemoryServiceHandler(deps))],
    parts: [new VersionPruning(memories, deps.clock, deps.log)],
    attachments: createAttachments(memoryStores),
    sync: createMemorySync(memories),
  };
}

/** Forgets versions whose time is over. Any replica does it; doing it twice does no harm. */
class VersionPruning implements Service {
  readonly name = "memory version pruning";
  private readonly memories: Pick<MemoriesStore, "prune">;
  private readonly clock: Clock;
  private readonly log: Logger;
  private stopCalling: (() => void) | undefined;
  private running: Promise<void> | undefined;

  constructor(memories: Pick<MemoriesStore, "prune">, clock: Clock, log: Logger) {
    this.memories = memories;
    this.clock = clock;
    this.log = log;
  }

  async start(): Promise<void> {
    this.stopCalling = this.clock.every(PRUNE_EVERY_MS, () => {
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
      await this.memories.prune(VERSIONS_KEPT_MS);
    } catch (error) {
      this.log.warn({ error: messageOf(error) }, "old versions of memories could not be forgotten");
    }
  }
}
