/** `/v1/memory_stores/{memory_store_id}/memory_versions`. */
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { invalidField } from "../../../../kit/errors.ts";
import { MemoryOperation, MemoryView } from "../../../../proto/gen/tendon/v1/memory_pb.js";
import { MemoryService } from "../../../../proto/gen/tendon/v1/memory_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { limitOf, pageOf, rangeOf } from "../list-query.ts";
import { viewOf } from "./memories.ts";
import { memoryVersionJson, OPERATIONS } from "./memory-json.ts";

const MOST = 100;

const { method } = MemoryService;

export function memoryVersionRoutes(): ApiRoute[] {
  const all = "/v1/memory_stores/{memory_store_id}/memory_versions";
  const path = `${all}/{memory_version_id}`;
  const one = ({ params }: ApiCall) => ({
    memoryStoreId: params.memory_store_id!,
    memoryVersionId: params.memory_version_id!,
  });
  return [
    route("GET", all, listMemoryVersions),
    route("GET", path, async (call) => {
      const request = { ...one(call), view: viewOf(call.query, MemoryView.FULL) };
      return memoryVersionJson((await call.services.call(method.getMemoryVersion, request)).memoryVersion!);
    }),
    route("POST", `${path}/redact`, async (call) =>
      memoryVersionJson((await call.services.call(method.redactMemoryVersion, one(call))).memoryVersion!),
    ),
  ];
}

/** There are no service accounts here, so none has written anything. */
async function listMemoryVersions({ services, params, query }: ApiCall) {
  const isNobodys = (query.get("service_account_id") ?? "") !== "";
  const { fromMs, toMs } = rangeOf(query);
  const { memoryVersions, nextPageToken } = await services.call(method.listMemoryVersions, {
    memoryStoreId: params.memory_store_id!,
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
    memoryId: query.get("memory_id") ?? "",
    sessionId: query.get("session_id") ?? "",
    apiKeyId: query.get("api_key_id") ?? "",
    operation: operationOf(query),
    view: viewOf(query, MemoryView.BASIC),
    ...(Number.isFinite(fromMs) && { createdAtOrAfter: timestampFromMs(fromMs) }),
    ...(Number.isFinite(toMs) && { createdAtOrBefore: timestampFromMs(toMs) }),
  });
  if (isNobodys) return { data: [], next_page: null };
  return { data: memoryVersions.map(memoryVersionJson), next_page: nextPageToken || null };
}

function operationOf(query: URLSearchParams): MemoryOperation {
  const word = query.get("operation");
  if (word === null) return MemoryOperation.UNSPECIFIED;
  const operation = OPERATIONS[word];
  if (operation === undefined)
    throw invalidField("operation", `must be ${Object.keys(OPERATIONS).join(", ")}`);
  return operation;
}
