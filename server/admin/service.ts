/** AdminService. Every change writes its entry of the audit log in its own transaction. */
import { create } from "@bufbuild/protobuf";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { contentHash } from "../../kit/canonical-json.ts";
import type { Clock } from "../../kit/clock.ts";
import { notFound } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { Logger } from "../../kit/log.ts";
import { refuseNulIn } from "../../kit/nul.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import {
  type AdminService,
  type ArchiveWorkspaceRequest,
  type CreateApiKeyRequest,
  type CreateJoinTokenRequest,
  type CreateWorkspaceRequest,
  CreateWorkspaceRequestSchema,
  type GetStatusRequest,
  type GetWorkspaceRequest,
  type GetWorkspaceUsageRequest,
  type ListApiKeysRequest,
  type ListAuditEntriesRequest,
  type ListJoinTokensRequest,
  type ListWorkspacesRequest,
  type RevokeApiKeyRequest,
  type RevokeHandAgentRequest,
  type RevokeJoinTokenRequest,
  type StopSessionsRequest,
  type UpdateWorkspaceRequest,
  type Workspace,
} from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { HandControl } from "../ports/hand-control.ts";
import { actorOf, maySee, principalOf, scopeOf } from "../ports/principal.ts";
import type { SessionTrees } from "../ports/session-trees.ts";
import type { AuditInput } from "../store/audit.ts";
import type { Cursor, PageRequest } from "../store/page.ts";
import type { Store } from "../store/store.ts";
import { newApiKey, newJoinToken } from "./new-key.ts";
import { namedWorkspace, planKey, requireInstallationWide } from "./rules.ts";
import { createStatus } from "./status.ts";
import { stopSessions } from "./stop-sessions.ts";

export interface AdminDeps {
  readonly store: Pick<
    Store,
    "apiKeys" | "audit" | "blobs" | "identities" | "joinTokens" | "replicas" | "workspaces"
  >;
  readonly trees: SessionTrees;
  readonly handControl: Pick<HandControl, "disconnect">;
  /** A key stops working here at once; without an id, all are looked at anew. */
  readonly forgetKey: (apiKeyId?: string) => void;
  readonly clock: Clock;
  readonly log: Logger;
  readonly build: string;
  readonly installationId: string;
  readonly defaultWorkspaceId: string;
  readonly databaseKind: "embedded" | "external";
}

const DEFAULT_PAGE = 20;
const DEFAULT_AUDIT_PAGE = 100;
const DEFAULT_JOIN_TOKEN_MS = 3_600_000;

export class AdminServiceHandler implements ServiceImplementation<typeof AdminService> {
  private readonly deps: AdminDeps;
  private readonly store: AdminDeps["store"];

  constructor(deps: AdminDeps) {
    this.deps = deps;
    this.store = deps.store;
  }

  async getStatus(_request: GetStatusRequest, context: RpcContext) {
    const presence = await this.store.replicas.presence(scopeOf(principalOf(context)));
    return createStatus(presence, this.deps);
  }

  async createWorkspace(request: CreateWorkspaceRequest, context: RpcContext) {
    requireInstallationWide(principalOf(context), "make workspaces");
    const { name, limits, tamperEvident, requestId } = request;
    const content = contentHash(
      CreateWorkspaceRequestSchema,
      create(CreateWorkspaceRequestSchema, { name, tamperEvident, ...(limits && { limits }) }),
    );
    const id = newId("workspace");
    const workspace = await this.store.workspaces.create({
      id,
      name,
      limits,
      tamperEvident,
      request: { requestId, contentHash: content },
      audit: this.audit(context, "workspace.create", id, id, {
        name,
        ...(tamperEvident && { tamper_evident: true }),
      }),
    });
    return { workspace };
  }

  async getWorkspace({ workspaceId }: GetWorkspaceRequest, context: RpcContext) {
    const named = namedWorkspace(principalOf(context), workspaceId) ?? this.deps.defaultWorkspaceId;
    return { workspace: found(await this.store.workspaces.find(named), "workspace", named) };
  }

  async listWorkspaces(request: ListWorkspacesRequest, context: RpcContext) {
    const only = scopeOf(principalOf(context));
    const query: PageQuery = ["workspaces", only, request.includeArchived];
    const page = pageOf(request, query, DEFAULT_PAGE);
    const { items, next } = await this.store.workspaces.list({
      only,
      includeArchived: request.includeArchived,
      page,
    });
    return { workspaces: items, nextPageToken: encodePageToken(query, next) };
  }

  async updateWorkspace(request: UpdateWorkspaceRequest, context: RpcContext) {
    const { workspaceId, name, limits, tamperEvident } = request;
    this.requireVisible(context, workspaceId);
    if (limits !== undefined) requireInstallationWide(principalOf(context), "change limits");
    const changed = {
      ...(name === undefined ? {} : { name }),
      limits: limits !== undefined,
      ...(tamperEvident === undefined ? {} : { tamper_evident: tamperEvident }),
    };
    const audit = this.audit(context, "workspace.update", workspaceId, workspaceId, changed);
    const workspace = await this.store.workspaces.update({ workspaceId, name, limits, tamperEvident, audit });
    return { workspace: found(workspace, "workspace", workspaceId) };
  }

  async archiveWorkspace({ workspaceId }: ArchiveWorkspaceRequest, context: RpcContext) {
    requireInstallationWide(principalOf(context), "archive workspaces");
    const audit = this.audit(context, "workspace.archive", workspaceId, workspaceId);
    const workspace = found(
      await this.store.workspaces.archive(workspaceId, audit),
      "workspace",
      workspaceId,
    );
    this.deps.forgetKey();
    await stopSessions(this.deps, workspaceId, context.signal);
    return { workspace };
  }

  async createApiKey(request: CreateApiKeyRequest, context: RpcContext) {
    const { clock, defaultWorkspaceId } = this.deps;
    const plan = planKey(request, principalOf(context), { nowMs: clock.nowMs(), defaultWorkspaceId });
    if (plan.workspaceId !== undefined) await this.requireLive(plan.workspaceId);
    const { secret, secretHash, hint } = newApiKey(plan.role);
    const id = newId("apiKey");
    const { name } = request;
    const audit = this.audit(context, "api_key.create", id, plan.workspaceId, { name, role: plan.role });
    const apiKey = await this.store.apiKeys.create({ id, name, ...plan, secretHash, hint }, audit);
    return { apiKey, secret };
  }

  async listApiKeys(request: ListApiKeysRequest, context: RpcContext) {
    const workspaceId = scopeOf(principalOf(context));
    const { includeRevoked } = request;
    const query: PageQuery = ["api keys", workspaceId, includeRevoked];
    const page = pageOf(request, query, DEFAULT_PAGE);
    const { items, next } = await this.store.apiKeys.list({ workspaceId, includeRevoked, page });
    return { apiKeys: items, nextPageToken: encodePageToken(query, next) };
  }

  async revokeApiKey({ apiKeyId }: RevokeApiKeyRequest, context: RpcContext) {
    const audit = this.audit(context, "api_key.revoke", apiKeyId);
    const apiKey = await this.store.apiKeys.revoke(apiKeyId, scopeOf(principalOf(context)), audit);
    this.deps.forgetKey(apiKeyId);
    return { apiKey: found(apiKey, "API key", apiKeyId) };
  }

  async createJoinToken(request: CreateJoinTokenRequest, context: RpcContext) {
    const workspaceId =
      namedWorkspace(principalOf(context), request.workspaceId) ?? this.deps.defaultWorkspaceId;
    await this.requireLive(workspaceId);
    const { secret, secretHash } = newJoinToken();
    const id = newId("joinToken");
    const { pool } = request;
    const uses = request.uses || 1;
    const validForMs = Number(request.validForMs) || DEFAULT_JOIN_TOKEN_MS;
    const joinToken = await this.store.joinTokens.create(
      { id, workspaceId, pool, secretHash, uses, validForMs },
      this.audit(context, "join_token.create", id, workspaceId, { pool, uses, valid_for_ms: validForMs }),
    );
    return { joinToken, secret };
  }

  async listJoinTokens(request: ListJoinTokensRequest, context: RpcContext) {
    const workspaceId = scopeOf(principalOf(context));
    const query: PageQuery = ["join tokens", workspaceId];
    const page = pageOf(request, query, DEFAULT_PAGE);
    const { items, next } = await this.store.joinTokens.list({ workspaceId, page });
    return { joinTokens: items, nextPageToken: encodePageToken(query, next) };
  }

  async revokeJoinToken({ joinTokenId }: RevokeJoinTokenRequest, context: RpcContext) {
    const audit = this.audit(context, "join_token.revoke", joinTokenId);
    const scope = scopeOf(principalOf(context));
    const joinToken = await this.store.joinTokens.revoke(joinTokenId, scope, audit);
    return { joinToken: found(joinToken, "join token", joinTokenId) };
  }

  async revokeHandAgent({ handAgentId }: RevokeHandAgentRequest, context: RpcContext) {
    const audit = this.audit(context, "hand_agent.revoke", handAgentId);
    const scope = scopeOf(principalOf(context));
    if (!(await this.store.identities.revokeHandAgent(handAgentId, scope, audit))) {
      throw notFound("hand agent", handAgentId);
    }
    this.deps.forgetKey(handAgentId);
    await this.deps.handControl.disconnect(handAgentId, "the hand agent was revoked");
    return {};
  }

  async listAuditEntries(request: ListAuditEntriesRequest, context: RpcContext) {
    const workspaceId = namedWorkspace(principalOf(context), request.workspaceId);
    const filter = auditFilter(request, workspaceId);
    const query: PageQuery = ["audit", ...Object.values(filter).map(String)];
    const page = pageOf(request, query, DEFAULT_AUDIT_PAGE);
    const { items, next } = await this.store.audit.list({ ...filter, page });
    return { entries: items, nextPageToken: encodePageToken(query, next) };
  }

  async getWorkspaceUsage({ workspaceId }: GetWorkspaceUsageRequest, context: RpcContext) {
    const named = namedWorkspace(principalOf(context), workspaceId) ?? this.deps.defaultWorkspaceId;
    const { sessions, ...counts } = found(await this.store.workspaces.usage(named), "workspace", named);
    const usage = Object.fromEntries(Object.entries(counts).map(([name, count]) => [name, BigInt(count)]));
    const { bytes } = await this.store.blobs.usage(named);
    return { sessions: BigInt(sessions), usage, storedBytes: BigInt(bytes) };
  }

  async stopSessions({ workspaceId }: StopSessionsRequest, context: RpcContext) {
    const named = namedWorkspace(principalOf(context), workspaceId);
    if (named !== undefined) found(await this.store.workspaces.find(named), "workspace", named);
    await this.store.audit.record(
      this.audit(context, "sessions.stop", named ?? this.deps.installationId, named),
    );
    return { sessionIds: await stopSessions(this.deps, named, context.signal) };
  }

  private requireVisible(context: RpcContext, workspaceId: string): void {
    if (!maySee(principalOf(context), workspaceId)) throw notFound("workspace", workspaceId);
  }

  /** Nothing new is made in an archived workspace. */
  private async requireLive(workspaceId: string): Promise<Workspace> {
    const workspace = await this.store.workspaces.find(workspaceId);
    if (workspace === undefined || workspace.archivedAt !== undefined)
      throw notFound("workspace", workspaceId);
    return workspace;
  }

  private audit(
    context: RpcContext,
    action: string,
    subject: string,
    workspaceId?: string,
    detail: Readonly<Record<string, unknown>> = {},
  ): AuditInput {
    return { actor: actorOf(principalOf(context)), action, subject, workspaceId, detail };
  }
}

function auditFilter(request: ListAuditEntriesRequest, workspaceId: string | undefined) {
  const { subject, actor, action, sessionId, since, until, ascending } = request;
  refuseNulIn({ subject, actor, action, sessionId });
  return {
    workspaceId,
    subject: subject || undefined,
    actor: actor || undefined,
    action: action || undefined,
    sessionId: sessionId || undefined,
    since: since && timestampDate(since),
    until: until && timestampDate(until),
    ascending,
  };
}

function pageOf(
  request: { pageSize: number; pageToken: string },
  query: PageQuery,
  defaultSize: number,
): PageRequest {
  const after = decodePageToken(query, request.pageToken, 2) as Cursor | undefined;
  return { size: request.pageSize || defaultSize, after };
}

function found<T>(value: T | undefined, what: string, id: string): T {
  if (value === undefined) throw notFound(what, id);
  return value;
}
