/** SessionResourceService: what a session was given, while it lives. */
import { contentHash } from "../../kit/canonical-json.ts";
import type { Clock } from "../../kit/clock.ts";
import { invalidField, notFound } from "../../kit/errors.ts";
import { isId, newId } from "../../kit/ids.ts";
import { refuseNul } from "../../kit/nul.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { Turns } from "../../kit/turns.ts";
import type { FileInput, SessionResource } from "../../proto/gen/tendon/v1/session_pb.js";
import {
  type CreateSessionResourceRequest,
  CreateSessionResourceRequestSchema,
  type DeleteSessionResourceRequest,
  type GetSessionResourceRequest,
  type ListSessionResourcesRequest,
  type SessionResourceService,
  type UpdateSessionResourceRequest,
} from "../../proto/gen/tendon/v1/session_resource_service_pb.js";
import type { FileAttachments } from "../ports/files.ts";
import { actorOf, maySee, principalOf } from "../ports/principal.ts";
import { madeOnce } from "../ports/repeated-creation.ts";
import type { SecretSealing } from "../ports/secret-sealing.ts";
import { resourcesOf } from "../ports/session-message.ts";
import { type RequestIdStore, SCOPES } from "../store/request-ids.ts";
import type { SessionResourceStore } from "../store/session-resources.ts";
import type { OwnVault } from "../store/session-vaults.ts";
import type { SessionRecord, SessionStore } from "../store/sessions.ts";
import { checkToken, ownCredential, placeOf, type RepositoryToken } from "./repository-tokens.ts";
import { fileResource } from "./resources.ts";

export interface ResourceServiceDeps {
  readonly sessions: Pick<SessionStore, "find">;
  readonly sessionResources: SessionResourceStore;
  readonly requestIds: Pick<RequestIdStore, "madeBy">;
  readonly files: FileAttachments;
  readonly sealing: SecretSealing;
  /** What the session was given has changed: its hands are brought up to date. Does not reject, and is not waited for long. */
  readonly filesChanged: (sessionId: string) => Promise<void>;
  readonly clock: Clock;
}

export class ResourceServiceHandler implements ServiceImplementation<typeof SessionResourceService> {
  private readonly deps: ResourceServiceDeps;
  private readonly turns = new Turns("session's token");

  constructor(deps: ResourceServiceDeps) {
    this.deps = deps;
  }

  async createSessionResource(request: CreateSessionResourceRequest, context: RpcContext) {
    const { sessionId, requestId } = request;
    const { workspaceId } = await this.find(sessionId, context);
    const kind = request.resource?.kind;
    if (kind?.case !== "file")
      throw invalidField("resource", "a living session is given files alone; all else when it is made");
    refuseNul(requestId, "request_id");
    const made = {
      requestId,
      contentHash: contentHash(CreateSessionResourceRequestSchema, { ...request, requestId: "" }),
    };
    const add = () => this.addFile(kind.value, { sessionId, workspaceId, request: made });
    const claim = { ...made, workspaceId, scope: SCOPES.sessionResource(sessionId) };
    const resource = await madeOnce(this.deps.requestIds, claim, add, async (id) => {
      const session = await this.deps.sessions.find(sessionId);
      return session && resourcesOf(session.resources).find((there) => there.id === id);
    });
    return { resource };
  }

  private async addFile(
    file: FileInput,
    session: Pick<Parameters<SessionResourceStore["addFile"]>[0], "sessionId" | "workspaceId" | "request">,
  ): Promise<SessionResource> {
    // Whether its place is free is asked when it is added: a repeat's is taken, by what the first one added.
    const inputs = [{ file, field: "resource.file" }];
    const [attachment] = await this.deps.files.attach(inputs, session.workspaceId);
    const resource = await this.deps.sessionResources.addFile({
      ...session,
      resource: fileResource(attachment!, this.deps.clock.nowMs()),
      copy: attachment!.copy,
      check: (there) => this.deps.files.checkPlace(attachment!.attached.mountPath, pathsOf(there)),
    });
    await this.deps.filesChanged(session.sessionId);
    return resource;
  }

  async getSessionResource({ sessionId, resourceId }: GetSessionResourceRequest, context: RpcContext) {
    return { resource: resourceOf(await this.find(sessionId, context), resourceId) };
  }

  async listSessionResources({ sessionId }: ListSessionResourcesRequest, context: RpcContext) {
    return { resources: resourcesOf((await this.find(sessionId, context)).resources) };
  }

  async updateSessionResource(request: UpdateSessionResourceRequest, context: RpcContext) {
    const { sessionId, resourceId, authorizationToken: token, userName } = request;
    const session = await this.find(sessionId, context);
    const { kind } = resourceOf(session, resourceId);
    if (kind.case !== "gitRepository") throw invalidField("resource_id", "only a repository has a token");
    checkToken({ token, userName });
    const { url } = kind.value;
    const resource = await this.turns.untilDone(sessionId, async () => {
      const vault = await this.sealedToken(session, url, { token, userName }, context);
      return this.deps.sessionResources.setToken({
        ...{ sessionId, resourceId, vault },
        atMs: this.deps.clock.nowMs(),
      });
    });
    return { resource };
  }

  private async sealedToken(
    { sessionId, workspaceId }: SessionRecord,
    url: string,
    token: RepositoryToken,
    context: RpcContext,
  ): Promise<OwnVault> {
    const place = placeOf(url);
    const there = await this.deps.sessionResources.ownVault(sessionId, place.destination);
    const whose = {
      workspaceId,
      vaultId: there.vaultId ?? newId("vault"),
      credentialId: there.credentialId ?? newId("credential"),
    };
    const credential = await ownCredential(this.deps.sealing, place, token, whose);
    return { vaultId: whose.vaultId, credentials: [credential], actor: actorOf(principalOf(context)) };
  }

  async deleteSessionResource({ sessionId, resourceId }: DeleteSessionResourceRequest, context: RpcContext) {
    await this.find(sessionId, context);
    await this.deps.sessionResources.removeFile(sessionId, resourceId);
    await this.deps.filesChanged(sessionId);
    return {};
  }

  private async find(sessionId: string, context: RpcContext): Promise<SessionRecord> {
    if (isId("thread", sessionId))
      throw invalidField("session_id", "a thread has what the session at its root was given");
    const session = sessionId.includes("\0") ? undefined : await this.deps.sessions.find(sessionId);
    if (session === undefined || !maySee(principalOf(context), session.workspaceId))
      throw notFound("session", sessionId);
    return session;
  }
}

function resourceOf({ resources }: SessionRecord, resourceId: string): SessionResource {
  const resource = resourcesOf(resources).find(({ id }) => id === resourceId && id !== "");
  if (resource === undefined) throw notFound("session resource", resourceId);
  return resource;
}

function pathsOf(resources: readonly SessionResource[]): string[] {
  return resources.flatMap(({ kind }) => (kind.case === "file" ? [kind.value.mountPath] : []));
}
