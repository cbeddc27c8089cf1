/** EnvironmentService. */
import { create } from "@bufbuild/protobuf";
import { contentHash } from "../../kit/canonical-json.ts";
import { notFound } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import {
  type ArchiveEnvironmentRequest,
  type CreateEnvironmentRequest,
  CreateEnvironmentRequestSchema,
  type DeleteEnvironmentRequest,
  type EnvironmentService,
  type GetEnvironmentRequest,
  type ListEnvironmentsRequest,
  type UpdateEnvironmentRequest,
} from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { maySee, principalOf, scopeOf, workspaceOf } from "../ports/principal.ts";
import type { EnvironmentStore } from "../store/environments.ts";
import type { Cursor } from "../store/page.ts";
import { checkEnvironmentSpec } from "./rules.ts";

export interface EnvironmentDeps {
  readonly environments: EnvironmentStore;
  readonly defaultWorkspaceId: string;
}

const DEFAULT_PAGE = 20;

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
    const environment = await this.environments.find(environmentId);
    if (environment === undefined || !maySee(principalOf(context), environment.workspaceId)) {
      throw notFound("environment", environmentId);
    }
    return { environment };
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

  async updateEnvironment({ environmentId, spec }: UpdateEnvironmentRequest, context: RpcContext) {
    const wanted = spec ?? create(EnvironmentSpecSchema);
    checkEnvironmentSpec(wanted);
    const workspaceId = scopeOf(principalOf(context));
    const environment = await this.environments.update({ environmentId, workspaceId, spec: wanted });
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
}
