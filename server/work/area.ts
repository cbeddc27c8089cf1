/** Puts the work queue together. */
import { bindService } from "../../kit/rpc/service.ts";
import { WorkService } from "../../proto/gen/tendon/v1/work_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { WorkQueue } from "../ports/work-queue.ts";
import { type WorkDeps, WorkServiceHandler } from "./service.ts";
import { WorkSweeper } from "./sweeper.ts";
import { WaitingPolls } from "./waiting-polls.ts";

export interface WorkArea extends Area {
  readonly queue: WorkQueue;
}

export function createWorkArea(deps: WorkDeps): WorkArea {
  const polls = new WaitingPolls(deps.clock);
  return {
    name: "work",
    services: [bindService(WorkService, new WorkServiceHandler(deps, polls))],
    parts: [new WorkSweeper(deps, polls)],
    queue: { queued: (environmentId) => polls.wake(environmentId) },
    drain: async () => polls.end(),
  };
}
