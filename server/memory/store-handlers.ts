/** MemoryService, as far as stores go. */
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { contentHash } from "../../kit/canonical-json.ts";
import { notFound } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNul } from "../../kit/nul.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import {
  type ArchiveMemoryStoreRequest,
  type CreateMemoryStoreRequest,
  CreateMemoryStoreRequestSchema,
  type DeleteMemoryStoreRequest,
  type GetMemoryStoreRequest,
  type ListMemoryStoresRequest,
  type UpdateMemoryStoreRequest,
} from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { actorOf, maySee, principalOf, scopeOf, workspaceOf } from "../ports/principal.ts";
import type { Cursor } from "../store/page.ts";
import type { Store } from "../store/store.ts";
import { checkStoreName } from "./rules.ts";

export interface MemoryServiceDeps {
  readonly store: Pick<Store, "memories" | "memoryStores">;
  readonly defaultWorkspaceId: string;
}

const DEFAULT_PAGE = 20;

export class MemoryStoreHandlers {
  protected readonly deps: MemoryServiceDeps;

  constructor(deps: MemoryServiceDeps) {
    this.deps = deps;
  }

  async createMemoryStore(request: CreateMemoryStoreRequest, context: RpcContext) {
    const { requestId, name, description, metadata } = request;
    checkStoreName(name);
    refuseNul(requestId, "request_id");
    refuseNul(description, "description");
    refuseNul(metadata, "metadata");
    const memoryStore = await this.deps.store.memoryStores.create({
      id: newId("memoryStore"),
      workspaceId: workspaceOf(principalOf(context), this.deps.defaultWorkspaceId),
      name,
      description,
      metadata,
      request: {
        requestId,
        contentHash: contentHash(CreateMemoryStoreRequestSchema, { ...request, requestId: "" }),
      },
    });
    return { memoryStore };
  }

  async getMemoryStore({ memoryStoreId }: GetMemoryStoreRequest, context: RpcContext) {
    const memoryStore = await this.deps.store.memoryStores.find(memoryStoreId);
    if (memoryStore === undefined || !maySee(principalOf(context), memoryStore.workspaceId))
      throw notFound("memory store", memoryStoreId);
    return { memoryStore };
  }

  async listMemoryStores(request: ListMemoryStoresRequest, context: RpcContext) {
    const workspaceId = scopeOf(principalOf(context));
    const { includeArchived, pageSize, pageToken } = request;
    const createdAtOrAfter = request.createdAtOrAfter && timestampDate(request.createdAtOrAfter);
    const createdAtOrBefore = request.createdAtOrBefore && timestampDate(request.createdAtOrBefore);
    const times = [createdAtOrAfter?.toISOString(), createdAtOrBefore?.toISOString()];
    const query: PageQuery = ["memory_stores", workspaceId, includeArchived, ...times];
    const after = decodePageToken(query, pageToken, 2) as Cursor | undefined;
    const { items, next } = await this.deps.store.memoryStores.list({
      workspaceId,
      includeArchived,
      createdAtOrAfter,
      createdAtOrBefore,
      page: { size: pageSize || DEFAULT_PAGE, after },
    });
    return { memoryStores: items, nextPageToken: encodePageToken(query, next) };
  }

  async updateMemoryStore(request: UpdateMemoryStoreRequest, context: RpcContext) {
    const { memoryStoreId, name, description, metadata } = request;
    checkStoreName(name);
    refuseNul(description, "description");
    refuseNul(metadata, "metadata");
    const workspaceId = scopeOf(principalOf(context));
    const change = { memoryStoreId, workspaceId, name, description, metadata };
    const memoryStore = await this.deps.store.memoryStores.update(change);
    if (memoryStore === undefined) throw notFound("memory store", memoryStoreId);
    return { memoryStore };
  }

  async archiveMemoryStore({ memoryStoreId }: ArchiveMemoryStoreRequest, context: RpcContext) {
    const principal = principalOf(context);
    const audit = { actor: actorOf(principal), action: "memory_store.archive", subject: memoryStoreId };
    const workspaceId = scopeOf(principal);
    const memoryStore = await this.deps.store.memoryStores.archive(memoryStoreId, workspaceId, audit);
    if (memoryStore === undefined) throw notFound("memory store", memoryStoreId);
    return { memoryStore };
  }

  async deleteMemoryStore({ memoryStoreId }: DeleteMemoryStoreRequest, context: RpcContext) {
    const principal = principalOf(context);
    const audit = { actor: actorOf(principal), action: "memory_store.delete", subject: memoryStoreId };
    if (!(await this.deps.store.memoryStores.delete(memoryStoreId, scopeOf(principal), audit)))
      throw notFound("memory store", memoryStoreId);
    return {};
  }
}
