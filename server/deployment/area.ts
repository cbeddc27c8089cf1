/** Puts the parts that know deployments together. */
import { bindService } from "../../kit/rpc/service.ts";
import { DeploymentService } from "../../proto/gen/tendon/v1/deployment_service_pb.js";
import type { Area } from "../ports/area.ts";
import { type RunDeps, Runs } from "./runs.ts";
import { Scheduler, type SchedulerDeps } from "./scheduler.ts";
import { type DeploymentServiceDeps, DeploymentServiceHandler } from "./service.ts";

export type DeploymentAreaDeps = Omit<DeploymentServiceDeps, "runs"> &
  RunDeps &
  Pick<SchedulerDeps, "clock" | "log">;

export function createDeploymentArea(deps: DeploymentAreaDeps): Area {
  const runs = new Runs(deps);
  return {
    name: "deployment",
    services: [bindService(DeploymentService, new DeploymentServiceHandler({ ...deps, runs }))],
    parts: [new Scheduler({ ...deps, runs })],
  };
}
