/** `/v1/memory_stores`. */
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { MemoryService } from "../../../../proto/gen/tendon/v1/memory_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { flagOf, limitOf, pageOf, rangeOf } from "../list-query.ts";
import { metadataPatch, newMetadata } from "../metadata.ts";
import { memoryStoreJson } from "./memory-json.ts";

const MOST = 100;

const { method } = MemoryService;

export function memoryStoreRoutes(): ApiRoute[] {
  const path = "/v1/memory_stores/{memory_store_id}";
  const one = ({ params }: ApiCall) => ({ memoryStoreId: params.memory_store_id! });
  return [
    route("POST", "/v1/memory_stores", async ({ services, body: { fields }, requestId }) => {
      fields.only("name", "description", "metadata");
      const { memoryStore } = await services.call(method.createMemoryStore, {
        requestId,
        name: fields.requiredText("name"),
        description: fields.text("description") ?? "",
        metadata: newMetadata(fields),
      });
      return memoryStoreJson(memoryStore!);
    }),
    route("GET", "/v1/memory_stores", listMemoryStores),
    route("GET", path, async (call) =>
      memoryStoreJson((await call.services.call(method.getMemoryStore, one(call))).memoryStore!),
    ),
    route("POST", path, async (call) => {
      const { fields } = call.body;
      fields.only("name", "description", "metadata");
      const name = fields.changedText("name");
      const { memoryStore } = await call.services.call(method.updateMemoryStore, {
        ...one(call),
        metadata: metadataPatch(fields),
        ...(name !== undefined && { name }),
        ...(fields.has("description") && { description: fields.text("description") ?? "" }),
      });
      return memoryStoreJson(memoryStore!);
    }),
    route("DELETE", path, async (call) => {
      await call.services.call(method.deleteMemoryStore, one(call));
      return { id: call.params.memory_store_id, type: "memory_store_deleted" };
    }),
    route("POST", `${path}/archive`, async (call) =>
      memoryStoreJson((await call.services.call(method.archiveMemoryStore, one(call))).memoryStore!),
    ),
  ];
}

async function listMemoryStores({ services, query }: ApiCall) {
  const { fromMs, toMs } = rangeOf(query);
  const { memoryStores, nextPageToken } = await services.call(method.listMemoryStores, {
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
    includeArchived: flagOf(query, "include_archived"),
    ...(Number.isFinite(fromMs) && { createdAtOrAfter: timestampFromMs(fromMs) }),
    ...(Number.isFinite(toMs) && { createdAtOrBefore: timestampFromMs(toMs) }),
  });
  return { data: memoryStores.map(memoryStoreJson), next_page: nextPageToken || null };
}
