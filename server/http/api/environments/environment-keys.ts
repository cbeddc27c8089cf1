/** `/v1/environments/{environment_id}/keys`: credentials of workers. */
import {
  type EnvironmentKey,
  EnvironmentService,
} from "../../../../proto/gen/tendon/v1/environment_service_pb.js";
import { type ApiRoute, route } from "../api-route.ts";
import { limitOf, pageOf } from "../list-query.ts";
import { timeJson } from "../time-json.ts";

const MOST = 100;

const { method } = EnvironmentService;

export function environmentKeyRoutes(): ApiRoute[] {
  const path = "/v1/environments/{environment_id}/keys";
  return [
    route("POST", path, async ({ services, params, body: { fields } }) => {
      fields.only("name", "expires_in_seconds");
      const { environmentKey, key } = await services.call(method.createEnvironmentKey, {
        environmentId: params.environment_id!,
        name: fields.text("name") ?? "",
        expiresInSeconds: BigInt(fields.integer("expires_in_seconds") ?? 0),
      });
      const { id, environmentId, createdAt, expiresAt } = environmentKey!;
      const times = { created_at: timeJson(createdAt), expires_at: timeJson(expiresAt) };
      return { type: "environment_key", id, environment_id: environmentId, key, ...times };
    }),
    route("GET", path, async ({ services, params, query }) => {
      const { environmentKeys, nextPageToken } = await services.call(method.listEnvironmentKeys, {
        environmentId: params.environment_id!,
        pageSize: limitOf(query, MOST),
        pageToken: pageOf(query),
      });
      return { data: environmentKeys.map(keyJson), next_page: nextPageToken || null };
    }),
    route("DELETE", `${path}/{key_id}`, async ({ services, params }) => {
      const request = { environmentId: params.environment_id!, environmentKeyId: params.key_id! };
      await services.call(method.revokeEnvironmentKey, request);
      return { id: params.key_id, type: "environment_key_deleted" };
    }),
  ];
}

/** `hint`: how the key begins. */
function keyJson({ id, environmentId, name, hint, createdAt, expiresAt, lastUsedAt }: EnvironmentKey) {
  return {
    type: "environment_key",
    id,
    environment_id: environmentId,
    name: name || null,
    hint,
    created_at: timeJson(createdAt),
    expires_at: timeJson(expiresAt),
    last_used_at: timeJson(lastUsedAt),
  };
}
