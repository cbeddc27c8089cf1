/** `/v1/deployment_runs`. */
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { invalidField } from "../../../../kit/errors.ts";
import { DeploymentTrigger } from "../../../../proto/gen/tendon/v1/deployment_pb.js";
import { DeploymentService } from "../../../../proto/gen/tendon/v1/deployment_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { flagOf, limitOf, pageOf, rangeOf } from "../list-query.ts";
import { runJson } from "./run-json.ts";

const MOST = 1000;

const { method } = DeploymentService;

export function deploymentRunRoutes(): ApiRoute[] {
  return [
    route("GET", "/v1/deployment_runs", listRuns),
    route("GET", "/v1/deployment_runs/{deployment_run_id}", async ({ services, params }) =>
      runJson((await services.call(method.getDeploymentRun, { runId: params.deployment_run_id! })).run!),
    ),
  ];
}

const TRIGGERS: Readonly<Record<string, DeploymentTrigger>> = {
  schedule: DeploymentTrigger.SCHEDULE,
  manual: DeploymentTrigger.MANUAL,
};

async function listRuns({ services, query }: ApiCall) {
  const { fromMs, toMs } = rangeOf(query);
  const { runs, nextPageToken } = await services.call(method.listDeploymentRuns, {
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
    deploymentId: query.get("deployment_id") ?? "",
    trigger: triggerOf(query.get("trigger_type")),
    ...(query.has("has_error") && { hasError: flagOf(query, "has_error") }),
    ...(Number.isFinite(fromMs) && { createdAtOrAfter: timestampFromMs(fromMs) }),
    ...(Number.isFinite(toMs) && { createdBefore: timestampFromMs(toMs + 1) }),
  });
  return { data: runs.map(runJson), next_page: nextPageToken || null };
}

function triggerOf(word: string | null): DeploymentTrigger {
  if (word === null) return DeploymentTrigger.UNSPECIFIED;
  const trigger = TRIGGERS[word];
  if (trigger === undefined)
    throw invalidField("trigger_type", `must be ${Object.keys(TRIGGERS).join(" or ")}`);
  return trigger;
}
