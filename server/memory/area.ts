/** Puts the parts that know memory stores together. */
import type { Clock } from "../../kit/clock.ts";
import type { Logger } from "../../kit/log.ts";
import { Rounds } from "../../kit/rounds.ts";
import { bindService } from "../../kit/rpc/service.ts";
import { MemoryService } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { MemoryAttachments, MemorySync } from "../ports/memory.ts";
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
    // Any replica does it; doing it twice does no harm.
    parts: [
      new Rounds({
        name: "memory version pruning",
        everyMs: PRUNE_EVERY_MS,
        round: () => memories.prune(VERSIONS_KEPT_MS),
        failed: "old versions of memories could not be forgotten",
        clock: deps.clock,
        log: deps.log,
      }),
    ],
    attachments: createAttachments(memoryStores),
    sync: createMemorySync(memories),
  };
}
