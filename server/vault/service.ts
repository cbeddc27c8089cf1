/** VaultService. Secrets come in and never go out. */
import { create } from "@bufbuild/protobuf";
import { contentHash } from "../../kit/canonical-json.ts";
import { notFound, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNulIn } from "../../kit/nul.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import {
  type ArchiveCredentialRequest,
  type ArchiveVaultRequest,
  type CreateCredentialRequest,
  type CreateVaultRequest,
  CreateVaultRequestSchema,
  type DeleteCredentialRequest,
  type DeleteVaultRequest,
  type FinishConnectRequest,
  type GetCredentialRequest,
  type GetSealingKeyRequest,
  type GetVaultRequest,
  type ListCredentialsRequest,
  type ListVaultsRequest,
  type StartConnectRequest,
  type UpdateCredentialRequest,
  type UpdateVaultRequest,
  type ValidateCredentialRequest,
  type VaultService,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { actorOf, principalOf, scopeOf, workspaceOf } from "../ports/principal.ts";
import type { AuditInput } from "../store/audit.ts";
import type { StoredCredential } from "../store/credentials.ts";
import type { Cursor, PageRequest } from "../store/page.ts";
import type { VaultStore } from "../store/vaults.ts";
import { Connects, type ConnectsDeps } from "./connects.ts";
import { CredentialChanges, type CredentialChangesDeps } from "./credential-changes.ts";
import { validate } from "./proxy-asks.ts";

export interface VaultDeps extends Omit<CredentialChangesDeps & ConnectsDeps, "vaults"> {
  readonly vaults: VaultStore;
  readonly defaultWorkspaceId: string;
}

const DEFAULT_PAGE = 20;

export class VaultServiceHandler implements ServiceImplementation<typeof VaultService> {
  private readonly deps: VaultDeps;
  private readonly changes: CredentialChanges;
  private readonly connects: Connects;

  constructor(deps: VaultDeps) {
    this.deps = deps;
    this.changes = new CredentialChanges(deps);
    this.connects = new Connects(deps);
  }

  async createVault({ requestId, displayName, metadata }: CreateVaultRequest, context: RpcContext) {
    refuseNulIn({ requestId, displayName, metadata });
    const content = create(CreateVaultRequestSchema, { displayName, metadata });
    const id = newId("vault");
    const workspaceId = workspaceOf(principalOf(context), this.deps.defaultWorkspaceId);
    const vault = await this.deps.vaults.create({
      id,
      workspaceId,
      displayName,
      metadata: { ...metadata },
      request: { requestId, contentHash: contentHash(CreateVaultRequestSchema, content) },
      audit: { ...audit(context, "vault.create", id), workspaceId },
    });
    return { vault };
  }

  async getVault({ vaultId }: GetVaultRequest, context: RpcContext) {
    return {
      vault: found(await this.deps.vaults.find(vaultId, scopeOf(principalOf(context))), "vault", vaultId),
    };
  }

  async listVaults(request: ListVaultsRequest, context: RpcContext) {
    const workspaceId = scopeOf(principalOf(context));
    const { includeArchived } = request;
    const query: PageQuery = ["vaults", workspaceId, includeArchived];
    const page = pageOf(request, query);
    const { items, next } = await this.deps.vaults.list({ workspaceId, includeArchived, page });
    return { vaults: items, nextPageToken: encodePageToken(query, next) };
  }

  async updateVault({ vaultId, displayName, metadata }: UpdateVaultRequest, context: RpcContext) {
    refuseNulIn({ displayName, metadata });
    const vault = await this.deps.vaults.update({
      vaultId,
      workspaceId: scopeOf(principalOf(context)),
      displayName,
      metadata: { ...metadata },
      audit: audit(context, "vault.update", vaultId),
    });
    return { vault: found(vault, "vault", vaultId) };
  }

  async archiveVault({ vaultId }: ArchiveVaultRequest, context: RpcContext) {
    const scope = scopeOf(principalOf(context));
    const vault = await this.deps.vaults.archive(vaultId, scope, audit(context, "vault.archive", vaultId));
    return { vault: found(vault, "vault", vaultId) };
  }

  async deleteVault({ vaultId }: DeleteVaultRequest, context: RpcContext) {
    const scope = scopeOf(principalOf(context));
    const entry = audit(context, "vault.delete", vaultId);
    if (!(await this.deps.vaults.delete(vaultId, scope, entry))) throw notFound("vault", vaultId);
    return {};
  }

  async createCredential(request: CreateCredentialRequest, context: RpcContext) {
    return { credential: await this.changes.create(request, context) };
  }

  async getCredential({ credentialId }: GetCredentialRequest, context: RpcContext) {
    return { credential: (await this.find(credentialId, context)).credential };
  }

  async listCredentials(request: ListCredentialsRequest, context: RpcContext) {
    const { vaultId, includeArchived } = request;
    found(await this.deps.vaults.find(vaultId, scopeOf(principalOf(context))), "vault", vaultId);
    const query: PageQuery = ["credentials", vaultId, includeArchived];
    const page = pageOf(request, query);
    const { items, next } = await this.deps.credentials.list({ vaultId, includeArchived, page });
    return { credentials: items, nextPageToken: encodePageToken(query, next) };
  }

  async updateCredential(request: UpdateCredentialRequest, context: RpcContext) {
    return { credential: await this.changes.update(request, context) };
  }

  async archiveCredential({ credentialId }: ArchiveCredentialRequest, context: RpcContext) {
    const scope = scopeOf(principalOf(context));
    const entry = audit(context, "credential.archive", credentialId);
    const credential = await this.deps.credentials.archive(credentialId, scope, entry);
    return { credential: found(credential, "credential", credentialId) };
  }

  async deleteCredential({ credentialId }: DeleteCredentialRequest, context: RpcContext) {
    const scope = scopeOf(principalOf(context));
    const entry = audit(context, "credential.delete", credentialId);
    if (!(await this.deps.credentials.delete(credentialId, scope, entry)))
      throw notFound("credential", credentialId);
    return {};
  }

  async validateCredential({ credentialId }: ValidateCredentialRequest, context: RpcContext) {
    const stored = await this.find(credentialId, context);
    const { sealed } = stored;
    if (sealed === undefined) {
      throw new TendonError("CREDENTIAL_ARCHIVED", `the credential "${credentialId}" is archived`, {
        id: credentialId,
      });
    }
    return validate(this.deps.proxies, { ...stored, sealed }, context.signal);
  }

  startConnect(request: StartConnectRequest, context: RpcContext) {
    return this.connects.start(request, context);
  }

  finishConnect(request: FinishConnectRequest, context: RpcContext) {
    return this.connects.finish(request, context);
  }

  async getSealingKey(_request: GetSealingKeyRequest) {
    const { keyId, publicJwk } = await this.deps.sealing.currentKey();
    return { key: { keyId, publicJwk } };
  }

  private async find(credentialId: string, context: RpcContext): Promise<StoredCredential> {
    const stored = await this.deps.credentials.find(credentialId, scopeOf(principalOf(context)));
    return found(stored, "credential", credentialId);
  }
}

/** The workspace is the one of what is changed; the store knows it. */
function audit(context: RpcContext, action: string, subject: string): AuditInput {
  return { actor: actorOf(principalOf(context)), action, subject };
}

function pageOf(request: { pageSize: number; pageToken: string }, query: PageQuery): PageRequest {
  const after = decodePageToken(query, request.pageToken, 2) as Cursor | undefined;
  return { size: request.pageSize || DEFAULT_PAGE, after };
}

function found<T>(value: T | undefined, what: string, id: string): T {
  if (value === undefined) throw notFound(what, id);
  return value;
}
