/** MemoryService: parse → decide → store → answer. */
import type { DescMessage, MessageShape } from "@bufbuild/protobuf";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { contentHash } from "../../kit/canonical-json.ts";
import { invalidField } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNul } from "../../kit/nul.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { type Memory, MemoryView } from "../../proto/gen/tendon/v1/memory_pb.js";
import {
  type CreateMemoryRequest,
  CreateMemoryRequestSchema,
  type DeleteMemoryRequest,
  DeleteMemoryRequestSchema,
  type GetMemoryRequest,
  type GetMemoryVersionRequest,
  type ListMemoriesRequest,
  type ListMemoryVersionsRequest,
  type MemoryService,
  type MemorySession,
  type RedactMemoryVersionRequest,
  type UpdateMemoryRequest,
  UpdateMemoryRequestSchema,
} from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { actorOf, principalOf } from "../ports/principal.ts";
import type { MemoryActorRecord, MemoryWrite } from "../store/memories.ts";
import type { Cursor } from "../store/page.ts";
import { callerOf, type MemoryCaller } from "./access.ts";
import { checkContent, checkName, checkPath, checkPrefix, entriesAt } from "./rules.ts";
import { MemoryStoreHandlers } from "./store-handlers.ts";

const DEFAULT_PAGE = 20;
/** Pages with texts have at most so many. */
const FULL_PAGE = 20;

export class MemoryServiceHandler
  extends MemoryStoreHandlers
  implements ServiceImplementation<typeof MemoryService>
{
  async createMemory(request: CreateMemoryRequest, context: RpcContext) {
    const { path, content, view } = request;
    checkPath(path, "path");
    checkContent(content);
    const write = writeOf(CreateMemoryRequestSchema, request, context);
    const memory = await this.deps.store.memories.create({
      ...write,
      memoryId: newId("memory"),
      path,
      content,
    });
    return { memory: shown(memory, view || MemoryView.BASIC) };
  }

  async getMemory(request: GetMemoryRequest, context: RpcContext) {
    const { memoryId, path, view } = request;
    checkName(request);
    const { claim } = callerFor(request, context);
    const memory = await this.deps.store.memories.find(claim, { memoryId, path });
    return { memory: shown(memory, view || MemoryView.FULL) };
  }

  async listMemories(request: ListMemoriesRequest, context: RpcContext) {
    const { memoryStoreId, depth, view, pageToken } = request;
    checkPrefix(request.pathPrefix);
    const prefix = request.pathPrefix === "/" ? "" : request.pathPrefix;
    const { claim } = callerFor(request, context);
    const query: PageQuery = ["memories", memoryStoreId, prefix, depth];
    const [after = ""] = decodePageToken(query, pageToken, 1) ?? [];
    const isFull = view === MemoryView.FULL;
    const size = Math.min(request.pageSize || DEFAULT_PAGE, isFull ? FULL_PAGE : Number.POSITIVE_INFINITY);
    const all = entriesAt(await this.deps.store.memories.list(claim, prefix), prefix, depth);
    const rest = all.filter((entry) => isAfter(pathOf(entry), after));
    const page = rest.slice(0, size);
    const ids = page.flatMap((entry) => (typeof entry === "string" ? [] : [entry.id]));
    const contents = isFull ? await this.deps.store.memories.contents(ids) : undefined;
    const next = rest.length > page.length ? [pathOf(page.at(-1)!)] : undefined;
    return {
      entries: page.map((entry) => {
        if (typeof entry === "string") return { kind: { case: "prefix" as const, value: entry } };
        const content = contents?.get(entry.id);
        const value = content === undefined ? entry : { ...entry, content };
        return { kind: { case: "memory" as const, value } };
      }),
      nextPageToken: encodePageToken(query, next),
    };
  }

  async updateMemory(request: UpdateMemoryRequest, context: RpcContext) {
    const { memoryId, path, content, newPath, view } = request;
    checkName(request);
    if (newPath !== undefined) checkPath(newPath, "new_path");
    if (content !== undefined) checkContent(content);
    if (newPath === undefined && content === undefined)
      throw invalidField("content", "is needed where no new path is given");
    const write = writeOf(UpdateMemoryRequestSchema, request, context);
    const change = { memoryId, path, content, newPath, expectedSha256: request.expectedContentSha256 };
    const memory = await this.deps.store.memories.update({ ...write, ...change });
    return { memory: shown(memory, view || MemoryView.BASIC) };
  }

  async deleteMemory(request: DeleteMemoryRequest, context: RpcContext) {
    const { memoryId, path, expectedContentSha256: expectedSha256 } = request;
    checkName(request);
    const write = writeOf(DeleteMemoryRequestSchema, request, context);
    return {
      memoryId: await this.deps.store.memories.delete({ ...write, memoryId, path, expectedSha256 }),
    };
  }

  async getMemoryVersion(request: GetMemoryVersionRequest, context: RpcContext) {
    const { memoryVersionId: versionId, requestId, view } = request;
    if ((versionId === "") === (requestId === ""))
      throw invalidField("memory_version_id", "give either memory_version_id or request_id");
    const { claim } = callerFor(request, context);
    const isFull = view !== MemoryView.BASIC;
    return {
      memoryVersion: await this.deps.store.memories.findVersion(claim, { versionId, requestId }, isFull),
    };
  }

  async listMemoryVersions(request: ListMemoryVersionsRequest, context: RpcContext) {
    const { memoryStoreId, memoryId, operation, view } = request;
    const { claim } = callerFor(request, context);
    const actor = actorFilter(request);
    const createdAtOrAfter = request.createdAtOrAfter && timestampDate(request.createdAtOrAfter);
    const createdAtOrBefore = request.createdAtOrBefore && timestampDate(request.createdAtOrBefore);
    const query: PageQuery = [
      ...["memory_versions", memoryStoreId, memoryId, actor?.kind, actor?.id, operation],
      ...[createdAtOrAfter?.toISOString(), createdAtOrBefore?.toISOString()],
    ];
    const after = decodePageToken(query, request.pageToken, 2) as Cursor | undefined;
    const withContent = view === MemoryView.FULL;
    const size = Math.min(request.pageSize || DEFAULT_PAGE, withContent ? FULL_PAGE : 100);
    const { items, next } = await this.deps.store.memories.listVersions({
      ...{ claim, memoryId, actor, operation, createdAtOrAfter, createdAtOrBefore, withContent },
      page: { size, after },
    });
    return { memoryVersions: items, nextPageToken: encodePageToken(query, next) };
  }

  async redactMemoryVersion(request: RedactMemoryVersionRequest, context: RpcContext) {
    const { memoryStoreId, memoryVersionId: versionId } = request;
    const principal = principalOf(context);
    const { claim, actor } = callerOf(principal, memoryStoreId, undefined);
    const audit = {
      actor: actorOf(principal),
      action: "memory_version.redact",
      subject: versionId,
      detail: { memory_store_id: memoryStoreId },
    };
    return {
      memoryVersion: await this.deps.store.memories.redactVersion({ claim, versionId, actor, audit }),
    };
  }
}

interface ForStore {
  readonly memoryStoreId: string;
  readonly session?: MemorySession | undefined;
}

function callerFor({ memoryStoreId, session }: ForStore, context: RpcContext): MemoryCaller {
  return callerOf(principalOf(context), memoryStoreId, session);
}

/** The lease is no part of what was asked for: another holder may repeat the request. */
function writeOf<D extends DescMessage>(
  schema: D,
  request: MessageShape<D> & ForStore & { requestId: string },
  context: RpcContext,
): MemoryWrite {
  const { requestId } = request;
  refuseNul(requestId, "request_id");
  const asked = { ...request, requestId: "", view: MemoryView.UNSPECIFIED, session: undefined };
  return { ...callerFor(request, context), request: { requestId, contentHash: contentHash(schema, asked) } };
}

function shown(memory: Memory, view: MemoryView): Memory {
  if (view === MemoryView.FULL) return memory;
  const { content: _, ...basic } = memory;
  return basic;
}

function pathOf(entry: Memory | string): string {
  return typeof entry === "string" ? entry : entry.path;
}

/** As the database compares: byte by byte. */
function isAfter(path: string, after: string): boolean {
  return after === "" || Buffer.compare(Buffer.from(path), Buffer.from(after)) > 0;
}

function actorFilter(request: ListMemoryVersionsRequest): MemoryActorRecord | undefined {
  const { sessionId, apiKeyId } = request;
  if (sessionId !== "" && apiKeyId !== "")
    throw invalidField("api_key_id", "a version was made by a session or by a key, not by both");
  if (sessionId !== "") return { kind: "session", id: sessionId };
  return apiKeyId === "" ? undefined : { kind: "api_key", id: apiKeyId };
}
