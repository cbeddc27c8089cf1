/** `/v1/deployments`. */
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { invalidField } from "../../../../kit/errors.ts";
import { type Deployment, DeploymentStatus } from "../../../../proto/gen/tendon/v1/deployment_pb.js";
import { DeploymentService } from "../../../../proto/gen/tendon/v1/deployment_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { flagOf, limitOf, pageOf, rangeOf } from "../list-query.ts";
import { changedDeployment, newDeployment } from "./deployment-input.ts";
import { deploymentJson } from "./deployment-json.ts";
import { runJson } from "./run-json.ts";

const MOST = 100;

const { method } = DeploymentService;

export function deploymentRoutes(): ApiRoute[] {
  const path = "/v1/deployments/{deployment_id}";
  const one = ({ params }: ApiCall) => ({ deploymentId: params.deployment_id! });
  const json = ({ deployment }: { deployment?: Deployment | undefined }) => deploymentJson(deployment!);
  return [
    route("POST", "/v1/deployments", async ({ services, body, requestId }) => {
      const request = { requestId, spec: newDeployment(body) };
      return json(await services.call(method.createDeployment, request));
    }),
    route("GET", "/v1/deployments", listDeployments),
    route("GET", path, async (call) => json(await call.services.call(method.getDeployment, one(call)))),
    route("POST", path, async (call) => {
      const request = { ...one(call), ...changedDeployment(call.body) };
      return json(await call.services.call(method.updateDeployment, request));
    }),
    route("POST", `${path}/archive`, async (call) =>
      json(await call.services.call(method.archiveDeployment, one(call))),
    ),
    route("POST", `${path}/pause`, async (call) =>
      json(await call.services.call(method.pauseDeployment, one(call))),
    ),
    route("POST", `${path}/unpause`, async (call) =>
      json(await call.services.call(method.unpauseDeployment, one(call))),
    ),
    route("POST", `${path}/run`, async (call) => {
      const request = { ...one(call), requestId: call.requestId };
      return runJson((await call.services.call(method.runDeployment, request)).run!);
    }),
  ];
}

const STATUSES: Readonly<Record<string, DeploymentStatus>> = {
  active: DeploymentStatus.ACTIVE,
  paused: DeploymentStatus.PAUSED,
};

async function listDeployments({ services, query }: ApiCall) {
  const { fromMs, toMs } = rangeOf(query);
  const { deployments, nextPageToken } = await services.call(method.listDeployments, {
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
    agentId: query.get("agent_id") ?? "",
    status: statusOf(query.get("status")),
    includeArchived: flagOf(query, "include_archived"),
    ...(Number.isFinite(fromMs) && { createdAtOrAfter: timestampFromMs(fromMs) }),
    ...(Number.isFinite(toMs) && { createdBefore: timestampFromMs(toMs + 1) }),
  });
  return { data: deployments.map(deploymentJson), next_page: nextPageToken || null };
}

function statusOf(word: string | null): DeploymentStatus {
  if (word === null) return DeploymentStatus.UNSPECIFIED;
  const status = STATUSES[word];
  if (status === undefined) throw invalidField("status", `must be ${Object.keys(STATUSES).join(" or ")}`);
  return status;
}
