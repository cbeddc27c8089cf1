/** `/v1/environments/{environment_id}/work`. */
import { isTendonError, TendonError } from "../../../../kit/errors.ts";
import { WorkService } from "../../../../proto/gen/tendon/v1/work_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { limitOf, numberOf, pageOf } from "../list-query.ts";
import { metadataPatch } from "../metadata.ts";
import { heartbeatJson, statsJson, workJson } from "./work-json.ts";

const MOST = 100;
const MAX_BLOCK_MS = 999;
const DAY_MS = 86_400_000;
const DAY_S = 86_400;

const { method } = WorkService;

export function workRoutes(): ApiRoute[] {
  const queue = "/v1/environments/{environment_id}/work";
  const item = `${queue}/{work_id}`;
  return [
    route("GET", queue, listWork),
    route("GET", `${queue}/poll`, pollWork),
    route("GET", `${queue}/stats`, async ({ services, params }) =>
      statsJson(await services.call(method.getWorkStats, { environmentId: params.environment_id! })),
    ),
    route("GET", item, async (call) =>
      workJson((await call.services.call(method.getWork, named(call))).work!),
    ),
    route("POST", item, updateWork),
    route("POST", `${item}/ack`, async (call) =>
      workJson((await call.services.call(method.ackWork, named(call))).work!),
    ),
    route("POST", `${item}/heartbeat`, heartbeat),
    route("POST", `${item}/stop`, async (call) => {
      const { fields } = call.body;
      fields.only("force");
      const request = { ...named(call), force: fields.flag("force") ?? false };
      return workJson((await call.services.call(method.stopWork, request)).work!);
    }),
  ];
}

function named({ params }: ApiCall) {
  return { environmentId: params.environment_id!, workId: params.work_id! };
}

async function pollWork({ services, params, query, exchange }: ApiCall) {
  const workerId = exchange.request.headers["anthropic-worker-id"];
  const reclaimMs = numberOf(query, "reclaim_older_than_ms", { from: 0, to: DAY_MS });
  const { work, token } = await services.call(method.pollWork, {
    environmentId: params.environment_id!,
    blockMs: numberOf(query, "block_ms", { from: 1, to: MAX_BLOCK_MS }) ?? 0,
    ...(reclaimMs !== undefined && { reclaimOlderThanMs: BigInt(reclaimMs) }),
    workerId: typeof workerId === "string" ? workerId : "",
  });
  return work === undefined ? null : workJson(work, token);
}

async function heartbeat(call: ApiCall) {
  const { services, query } = call;
  const ttlS = numberOf(query, "desired_ttl_seconds", { from: 1, to: DAY_S }) ?? 0;
  const request = {
    ...named(call),
    expectedLastHeartbeat: query.get("expected_last_heartbeat") ?? "",
    desiredTtlMs: BigInt(ttlS) * 1_000n,
  };
  return heartbeatJson(await services.call(method.heartbeatWork, request));
}

async function listWork({ services, params, query }: ApiCall) {
  const { work, nextPageToken } = await services.call(method.listWork, {
    environmentId: params.environment_id!,
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
  });
  return { data: work.map((item) => workJson(item)), next_page: nextPageToken || null };
}

async function updateWork(call: ApiCall) {
  const { fields } = call.body;
  fields.only("metadata");
  try {
    const request = { ...named(call), metadata: metadataPatch(fields) };
    return workJson((await call.services.call(method.updateWork, request)).work!);
  } catch (error) {
    if (!isTendonError(error, "INVALID_FIELD")) throw error;
    throw new TendonError(error.reason, error.message, { ...error.metadata, error_code: "invalid_metadata" });
  }
}
