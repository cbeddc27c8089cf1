/** `/v1/environments`. */
import { Turns } from "../../../../kit/turns.ts";
import type { Environment } from "../../../../proto/gen/tendon/v1/environment_pb.js";
import { EnvironmentService } from "../../../../proto/gen/tendon/v1/environment_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { flagOf, limitOf, pageOf } from "../list-query.ts";
import { withMetadataCode } from "../metadata.ts";
import { changedEnvironmentSpec, newEnvironmentSpec } from "./environment-input.ts";
import { environmentJson } from "./environment-json.ts";

const MOST = 100;

const { method } = EnvironmentService;

export function environmentRoutes(): ApiRoute[] {
  const path = "/v1/environments/{environment_id}";
  const turns = new Turns("environment");
  return [
    route("POST", "/v1/environments", (call) => withMetadataCode(() => createEnvironment(call))),
    route("GET", "/v1/environments", listEnvironments),
    route("GET", path, async (call) => environmentJson(await find(call))),
    route("POST", path, (call) => withMetadataCode(() => updateEnvironment(call, turns))),
    route("DELETE", path, async ({ services, params }) => {
      await services.call(method.deleteEnvironment, { environmentId: params.environment_id! });
      return { id: params.environment_id, type: "environment_deleted" };
    }),
    route("POST", `${path}/archive`, async ({ services, params }) => {
      const request = { environmentId: params.environment_id! };
      return environmentJson((await services.call(method.archiveEnvironment, request)).environment!);
    }),
  ];
}

async function createEnvironment({ services, body, requestId }: ApiCall) {
  const spec = newEnvironmentSpec(body.fields);
  return environmentJson((await services.call(method.createEnvironment, { requestId, spec })).environment!);
}

async function listEnvironments({ services, query }: ApiCall) {
  const { environments, nextPageToken } = await services.call(method.listEnvironments, {
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
    includeArchived: flagOf(query, "include_archived"),
  });
  return { data: environments.map(environmentJson), next_page: nextPageToken || null };
}

/** Read, changed and written, unless it is another by then. */
async function updateEnvironment(call: ApiCall, turns: Turns) {
  return turns.untilDone(call.params.environment_id!, async () => {
    const before = await find(call);
    const spec = changedEnvironmentSpec(before.spec!, call.body.fields);
    const request = { environmentId: before.id, spec, expectedSpec: before.spec! };
    return environmentJson((await call.services.call(method.updateEnvironment, request)).environment!);
  });
}

async function find({ services, params }: ApiCall): Promise<Environment> {
  const request = { environmentId: params.environment_id! };
  return (await services.call(method.getEnvironment, request)).environment!;
}
