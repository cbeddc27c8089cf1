/** EnvironmentService. */
import { create } from "@bufbuild/protobuf";
import { contentHash } from "../../kit/canonical-json.ts";
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import { isId, newId } from "../../kit/ids.ts";
import { refuseNul } from "../../kit/nul.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { hashSecret, newSecret } from "../../kit/sign/secrets.ts";
import { type Environment, EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import {
  type ArchiveEnvironmentRequest,
  type CreateEnvironmentKeyRequest,
  type CreateEnvironmentRequest,
  CreateEnvironmentRequestSchema,
  type DeleteEnvironmentRequest,
  type EnvironmentService,
  type GetEnvironmentRequest,
  type ListEnvironmentKeysRequest,
  type ListEnvironmentsRequest,
  type RevokeEnvironmentKeyRequest,
  type UpdateEnvironmentRequest,
} from "../../proto/gen/tendon/v1/environment_service_pb.js";
import {
  actorOf,
  ENVIRONMENT_KEY_PREFIX,
  maySee,
  principalOf,
  scopeOf,
  workspaceOf,
} from "../ports/principal.ts";
import type { AuditInput } from "../store/audit.ts";
import type { EnvironmentKeyStore } from "../store/environment-keys.ts";
import type { EnvironmentStore } from "../store/environments.ts";
import type { Cursor } from "../store/page.ts";
import { checkEnvironmentSpec } from "./rules.ts";

export interface EnvironmentDeps {
  readonly environments: EnvironmentStore;
  readonly environmentKeys: Pick<EnvironmentKeyStore, "create" | "list" | "revoke">;
  readonly defaultWorkspaceId: string;
}

const DEFAULT_PAGE = 20;
const HINT_CHARS = 4;

export class EnvironmentServiceHandler implements ServiceImplementation<typeof EnvironmentService> {
  private readonly deps: EnvironmentDeps;
  private readonly environments: EnvironmentStore;

  constructor(deps: EnvironmentDeps) {
    this.deps = deps;
    this.environments = deps.environments;
  }

  async createEnvironment(request: CreateEnvironmentRequest, context: RpcContext) {
    const { requestId, makeDefault } = request;
    const spec = request.spec ?? create(EnvironmentSpecSchema);
    checkEnvironmentSpec(spec);
    const content = create(CreateEnvironmentRequestSchema, { spec, makeDefault });
    const environment = await this.environments.create({
      id: newId("environment"),
      workspaceId: workspaceOf(principalOf(context), this.deps.defaultWorkspaceId),
      spec,
      makeDefault,
      request: { requestId, contentHash: contentHash(CreateEnvironmentRequestSchema, content) },
    });
    return { environment };
  }

  async getEnvironment({ environmentId }: GetEnvironmentRequest, context: RpcContext) {
    return { environment: await this.find(environmentId, context) };
  }

  async listEnvironments(request: ListEnvironmentsRequest, context: RpcContext) {
    const workspaceId = scopeOf(principalOf(context));
    const { includeArchived, pageSize, pageToken } = request;
    const query: PageQuery = ["environments", workspaceId, includeArchived];
    const after = decodePageToken(query, pageToken, 2) as Cursor | undefined;
    const page = { size: pageSize || DEFAULT_PAGE, after };
    const { items, next } = await this.environments.list({ workspaceId, includeArchived, page });
    return { environments: items, nextPageToken: encodePageToken(query, next) };
  }

  async updateEnvironment(request: UpdateEnvironmentRequest, context: RpcContext) {
    const { environmentId, spec, expectedSpec: expected } = request;
    const wanted = spec ?? create(EnvironmentSpecSchema);
    checkEnvironmentSpec(wanted);
    const workspaceId = scopeOf(principalOf(context));
    const change = { environmentId, workspaceId, spec: wanted, expected };
    const environment = await this.environments.update(change);
    if (environment === undefined) throw notFound("environment", environmentId);
    return { environment };
  }

  async archiveEnvironment({ environmentId }: ArchiveEnvironmentRequest, context: RpcContext) {
    const environment = await this.environments.archive(environmentId, scopeOf(principalOf(context)));
    if (environment === undefined) throw notFound("environment", environmentId);
    return { environment };
  }

  async deleteEnvironment({ environmentId }: DeleteEnvironmentRequest, context: RpcContext) {
    if (!(await this.environments.delete(environmentId, scopeOf(principalOf(context))))) {
      throw notFound("environment", environmentId);
    }
    return {};
  }

  async createEnvironmentKey(request: CreateEnvironmentKeyRequest, context: RpcContext) {
    const { name, expiresInSeconds } = request;
    refuseNul(name, "name");
    const {
      id: environmentId,
      workspaceId,
      spec,
      archivedAt,
    } = await this.find(request.environmentId, context);
    if (!spec?.selfHosted) throw invalidField("environment_id", "is not self-hosted: it has no workers");
    if (archivedAt !== undefined)
      throw new TendonError("ENVIRONMENT_ARCHIVED", `environment "${environmentId}" is archived`, {
        id: environmentId,
      });
    const key = newSecret(ENVIRONMENT_KEY_PREFIX);
    const id = newId("environmentKey");
    const environmentKey = await this.deps.environmentKeys.create(
      {
        id,
        environmentId,
        workspaceId,
        name,
        hint: key.slice(0, ENVIRONMENT_KEY_PREFIX.length + HINT_CHARS),
        secretHash: Buffer.from(hashSecret(key), "hex"),
        expiresInSeconds: Number(expiresInSeconds),
      },
      {
        ...audited(context, "environment_key.create", id, workspaceId),
        detail: { environment_id: environmentId, name },
      },
    );
    return { environmentKey, key };
  }

  async listEnvironmentKeys(request: ListEnvironmentKeysRequest, context: RpcContext) {
    const { id } = await this.find(request.environmentId, context);
    const query: PageQuery = ["environment_keys", id];
    const after = decodePageToken(query, request.pageToken, 2) as Cursor | undefined;
    const page = { size: request.pageSize || DEFAULT_PAGE, after };
    const { items, next } = await this.deps.environmentKeys.list(id, page);
    return { environmentKeys: items, nextPageToken: encodePageToken(query, next) };
  }

  async revokeEnvironmentKey(request: RevokeEnvironmentKeyRequest, context: RpcContext) {
    const { environmentKeyId } = request;
    refuseNul(environmentKeyId, "environment_key_id");
    const { id, workspaceId } = await this.find(request.environmentId, context);
    const audit = audited(context, "environment_key.revoke", environmentKeyId, workspaceId);
    if (!(await this.deps.environmentKeys.revoke(id, environmentKeyId, audit)))
      throw notFound("environment key", environmentKeyId);
    return {};
  }

  private async find(environmentId: string, context: RpcContext): Promise<Environment> {
    const environment = isId("environment", environmentId)
      ? await this.environments.find(environmentId)
      : undefined;
    if (environment === undefined || !maySee(principalOf(context), environment.workspaceId)) {
      throw notFound("environment", environmentId);
    }
    return environment;
  }
}

function audited(context: RpcContext, action: string, subject: string, workspaceId: string): AuditInput {
  return { actor: actorOf(principalOf(context)), action, subject, workspaceId };
}
