/** `/v1/memory_stores/{memory_store_id}/memories`. */
import { invalidField } from "../../../../kit/errors.ts";
import { MemoryView } from "../../../../proto/gen/tendon/v1/memory_pb.js";
import { MemoryService } from "../../../../proto/gen/tendon/v1/memory_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { limitOf, pageOf } from "../list-query.ts";
import { memoryEntryJson, memoryJson } from "./memory-json.ts";

const MOST = 100;
/** Of a list that shows contents. */
const MOST_FULL = 20;

const { method } = MemoryService;

export function memoryRoutes(): ApiRoute[] {
  const all = "/v1/memory_stores/{memory_store_id}/memories";
  const path = `${all}/{memory_id}`;
  return [
    route("POST", all, async ({ services, params, query, body: { fields }, requestId }) => {
      fields.only("path", "content");
      const { memory } = await services.call(method.createMemory, {
        requestId,
        memoryStoreId: params.memory_store_id!,
        path: fields.requiredText("path"),
        content: fields.text("content") ?? "",
        view: viewOf(query, MemoryView.BASIC),
      });
      return memoryJson(memory!);
    }),
    route("GET", all, listMemories),
    route("GET", path, async (call) => {
      const request = { ...one(call), view: viewOf(call.query, MemoryView.FULL) };
      return memoryJson((await call.services.call(method.getMemory, request)).memory!);
    }),
    route("POST", path, updateMemory),
    route("DELETE", path, async (call) => {
      const expectedContentSha256 = call.query.get("expected_content_sha256") ?? "";
      await call.services.call(method.deleteMemory, { ...one(call), expectedContentSha256 });
      return { id: call.params.memory_id, type: "memory_deleted" };
    }),
  ];
}

async function updateMemory(call: ApiCall) {
  const { fields } = call.body;
  fields.only("path", "content", "precondition");
  const precondition = fields.object("precondition");
  precondition?.word("type", ["content_sha256"]);
  precondition?.only("type", "content_sha256");
  const [content, newPath] = [fields.text("content"), fields.changedText("path")];
  const { memory } = await call.services.call(method.updateMemory, {
    ...one(call),
    requestId: call.requestId,
    view: viewOf(call.query, MemoryView.BASIC),
    ...(content !== undefined && { content }),
    ...(newPath !== undefined && { newPath }),
    ...(precondition && { expectedContentSha256: precondition.requiredText("content_sha256") }),
  });
  return memoryJson(memory!);
}

async function listMemories({ services, params, query }: ApiCall) {
  const view = viewOf(query, MemoryView.BASIC);
  const most = view === MemoryView.FULL ? MOST_FULL : MOST;
  const { entries, nextPageToken } = await services.call(method.listMemories, {
    memoryStoreId: params.memory_store_id!,
    pageSize: limitOf(query, most),
    pageToken: pageOf(query),
    pathPrefix: query.get("path_prefix") ?? "",
    depth: depthOf(query),
    view,
  });
  return { data: entries.map(memoryEntryJson), next_page: nextPageToken || null };
}

function depthOf(query: URLSearchParams): number {
  const depth = query.get("depth") ?? "0";
  if (depth !== "0" && depth !== "1") throw invalidField("depth", "must be 0 or 1");
  return Number(depth);
}

export function viewOf(query: URLSearchParams, otherwise: MemoryView): MemoryView {
  const view = query.get("view");
  if (view === null) return otherwise;
  if (view === "basic") return MemoryView.BASIC;
  if (view === "full") return MemoryView.FULL;
  throw invalidField("view", "must be basic or full");
}

function one({ params }: ApiCall) {
  return { memoryStoreId: params.memory_store_id!, memoryId: params.memory_id! };
}
