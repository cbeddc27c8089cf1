/** Puts the parts that know deployments together. */
import { bindService } from "../../kit/rpc/service.ts";
import { Turns } from "../../kit/turns.ts";
import { DeploymentService } from "../../proto/gen/tendon/v1/deployment_service_pb.js";
import type { Area } from "../ports/area.ts";
import { type RunDeps, Runs } from "./runs.ts";
import { Scheduler, type SchedulerDeps } from "./scheduler.ts";
import { type DeploymentServiceDeps, DeploymentServiceHandler } from "./service.ts";

export type DeploymentAreaDeps = Omit<DeploymentServiceDeps, "runs" | "turns"> &
  Omit<RunDeps, "turns"> &
  Pick<SchedulerDeps, "clock" | "log">;

export function createDeploymentArea(deps: DeploymentAreaDeps): Area {
  const turns = new Turns("deployment");
  const runs = new Runs({ ...deps, turns });
  return {
    name: "deployment",
    services: [bindService(DeploymentService, new DeploymentServiceHandler({ ...deps, runs, turns }))],
    parts: [new Scheduler({ ...deps, runs })],
  };
}
