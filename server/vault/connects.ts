/**
 * Connects vaults to MCP servers by OAuth's authorization code. All that speaks to the far side is a proxy's; here are the
 * rules of vaults, the record, and that each connect is ended once.
 */
import { createHash } from "node:crypto";
import { create, fromJsonString } from "@bufbuild/protobuf";
import { timestampMs } from "@bufbuild/protobuf/wkt";
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNulIn } from "../../kit/nul.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import { destinationOf, hostOf } from "../../kit/vault/destination.ts";
import type { ConnectFinished } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import {
  type Credential,
  type CredentialSecret,
  CredentialUseSchema,
  type FinishConnectRequest,
  PlainSecretSchema,
  type StartConnectRequest,
  type Vault,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { actorOf, principalOf, scopeOf } from "../ports/principal.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { AuditStore } from "../store/audit.ts";
import { type CredentialStore, MAX_CREDENTIALS } from "../store/credentials.ts";
import type { RequestIdStore } from "../store/request-ids.ts";
import type { VaultStore } from "../store/vaults.ts";
import { checkRedirectUri } from "./connect-rules.ts";
import { finishConnect, startConnect } from "./proxy-asks.ts";
import { CLIENT_AUTH, checkSealed, checkUse } from "./rules.ts";
import type { Sealing } from "./sealing.ts";

export interface ConnectsDeps {
  readonly vaults: Pick<VaultStore, "find">;
  readonly credentials: Pick<CredentialStore, "find" | "list" | "create" | "update">;
  readonly requestIds: Pick<RequestIdStore, "claimOnce">;
  readonly audit: Pick<AuditStore, "record">;
  readonly proxies: Pick<ProxyDirectory, "ask">;
  readonly sealing: Sealing;
}

/** Of one call. */
interface Caller {
  readonly actor: string;
  readonly scope: string | undefined;
  readonly signal: AbortSignal;
}

export class Connects {
  private readonly deps: ConnectsDeps;

  constructor(deps: ConnectsDeps) {
    this.deps = deps;
  }

  async start(request: StartConnectRequest, context: RpcContext) {
    const { serverUrl, redirectUri, clientId, clientAuth, scope, issuer } = request;
    refuseNulIn({ clientId, scope, issuer });
    const caller = callerOf(context);
    const vault = await this.liveVault(request.vaultId, caller);
    checkClient(request);
    checkRedirectUri(redirectUri);
    const credentialId = await this.credentialFor(vault, serverUrl);
    const clientSecret = await this.sealedPart(vault, "client_secret", request.clientSecret, request);
    const names = { workspaceId: vault.workspaceId, vaultId: vault.id, credentialId };
    const ask = { ...names, principal: caller.actor, serverUrl, redirectUri, clientId, clientSecret };
    const host = hostOf(serverUrl);
    const started = await this.recorded(vault, caller, { host }, () =>
      startConnect(this.deps.proxies, { ...ask, clientAuth, scope, issuer }, caller.signal),
    );
    const detail = { host, issuer: started.issuer, client_id: started.clientId, credential_id: credentialId };
    if (started.registered) await this.record(vault, caller, "credential.connect_register", detail);
    await this.record(vault, caller, "credential.connect_begin", detail);
    const { $typeName: _, $unknown, ...answer } = started;
    return { ...answer, credentialId };
  }

  async finish(request: FinishConnectRequest, context: RpcContext) {
    const { connectState, state, iss, error, displayName } = request;
    refuseNulIn({ connectState, state, iss, error, displayName });
    const caller = callerOf(context);
    const vault = await this.liveVault(request.vaultId, caller);
    if ((request.code === undefined) === (error === ""))
      throw invalidField("code", "an answer has either a code or an error");
    const code = await this.sealedPart(vault, "code", request.code);
    const names = { workspaceId: vault.workspaceId, vaultId: vault.id, principal: caller.actor };
    const finished = await this.recorded(vault, caller, {}, async () => {
      await this.claim(vault, connectState);
      await this.record(vault, caller, "credential.connect_exchange", {});
      const ask = { ...names, connectState, state, code, iss, error };
      return finishConnect(this.deps.proxies, ask, caller.signal);
    });
    return this.recorded(vault, caller, {}, () => this.keep(vault, caller, finished, displayName));
  }

  /** NOT_FOUND, VAULT_ARCHIVED. */
  private async liveVault(vaultId: string, { scope }: Caller): Promise<Vault> {
    const vault = await this.deps.vaults.find(vaultId, scope);
    if (vault === undefined) throw notFound("vault", vaultId);
    if (vault.archivedAt === undefined) return vault;
    throw new TendonError("VAULT_ARCHIVED", `the vault "${vaultId}" is archived`, { id: vaultId });
  }

  /**
   * The credential that the vault has for the server, else a new id. What would fail in the end fails before anybody is sent
   * to a browser: ALREADY_EXISTS for one of another kind, LIMIT_EXCEEDED.
   */
  private async credentialFor(vault: Vault, serverUrl: string): Promise<string> {
    const { destination } = checkUse(oauthUse(serverUrl));
    if (destination.startsWith("mcp hand-agent:"))
      throw invalidField(
        "server_url",
        "a server behind a hand agent cannot be connected to; http(s)://… can",
      );
    const page = { size: 100, after: undefined };
    const live = await this.deps.credentials.list({ vaultId: vault.id, includeArchived: false, page });
    const found = live.items.find(({ use }) => use !== undefined && destinationOf(use) === destination);
    if (found?.use?.kind.case === "oauth") return found.id;
    if (found !== undefined) {
      const message = `server_url: the vault has the credential "${found.id}" of another kind for it; archive that first`;
      throw new TendonError("ALREADY_EXISTS", message, { field: "server_url", id: found.id });
    }
    if (live.items.length < MAX_CREDENTIALS) return newId("credential");
    const message = `the vault "${vault.id}" has ${MAX_CREDENTIALS} credentials, which is the limit`;
    throw new TendonError("LIMIT_EXCEEDED", message, {
      id: vault.id,
      limit: "credentials",
      most: String(MAX_CREDENTIALS),
    });
  }

  /** What only the proxy may read, sealed to it; empty for none. It names no credential, so that it can be kept as none. */
  private async sealedPart(
    vault: Vault,
    field: "client_secret" | "code",
    secret: CredentialSecret | undefined,
    { serverUrl = "", clientId = "" }: { readonly serverUrl?: string; readonly clientId?: string } = {},
  ): Promise<string> {
    if (secret === undefined) return "";
    if (secret.form.case === "sealed") {
      checkSealed(secret.form.value, await this.deps.sealing.knownKeys());
      return secret.form.value;
    }
    const plain = secret.form.value;
    const text = field === "code" ? plain?.value : plain?.clientSecret;
    if (text === undefined || !/^[\x20-\x7e]+$/.test(text))
      throw invalidField(
        field,
        `must hold it in ${field === "code" ? "value" : "client_secret"}, in printable ASCII`,
      );
    const only = create(PlainSecretSchema, field === "code" ? { value: text } : { clientSecret: text });
    const whose = { workspaceId: vault.workspaceId, vaultId: vault.id, credentialId: "" };
    return (await this.deps.sealing.seal(whose, oauthUse(serverUrl, clientId), only)).text;
  }

  /** Before anything is sent: whoever shows the state again, also on another replica, is refused. */
  private async claim({ id, workspaceId }: Vault, connectState: string): Promise<void> {
    const requestId = createHash("sha256").update(connectState).digest("base64url");
    const first = await this.deps.requestIds.claimOnce({
      workspaceId,
      scope: "connect",
      requestId,
      subjectId: id,
    });
    if (first === undefined) return;
    throw new TendonError("CONNECT_STATE_REFUSED", "this connect was ended already; begin another", {
      problem: "used",
    });
  }

  private async keep(vault: Vault, caller: Caller, finished: ConnectFinished, displayName: string) {
    const { credentials } = this.deps;
    const { credentialId, expiresAt, issuer } = finished;
    const { use, destination } = checkUse(fromJsonString(CredentialUseSchema, finished.use));
    const sealed = sealedText(finished.sealed, await this.deps.sealing.knownKeys());
    const expiresAtMs = expiresAt && timestampMs(expiresAt);
    const before = await credentials.find(credentialId, vault.workspaceId);
    const replaced = before !== undefined;
    const detail = { vault_id: vault.id, host: hostOf(destination.slice("mcp ".length)), issuer, replaced };
    const common = { workspaceId: vault.workspaceId };
    const audit = { actor: caller.actor, action: "credential.connect", subject: credentialId, detail };
    let credential: Credential | undefined;
    if (replaced) {
      const secret = { expectedVersion: undefined, use, destination, sealed, expiresAtMs };
      credential = await credentials.update({
        ...common,
        credentialId,
        displayName: undefined,
        metadata: {},
        secret: { ...secret, expiry: "set", isNew: true },
        audit,
      });
    } else {
      const made = { id: credentialId, vaultId: vault.id, displayName, metadata: {} };
      const request = { requestId: "", contentHash: new Uint8Array() };
      credential = await credentials.create({
        ...common,
        ...made,
        use,
        destination,
        sealed,
        expiresAtMs,
        request,
        audit,
      });
    }
    if (credential === undefined) throw notFound("vault", vault.id);
    return { credential, replaced };
  }

  /** Why a connect has failed is in the audit log, too. */
  private async recorded<T>(vault: Vault, caller: Caller, detail: object, run: () => Promise<T>): Promise<T> {
    try {
      return await run();
    } catch (error) {
      if (error instanceof TendonError) {
        const { step, problem } = error.metadata;
        const why = { reason: error.reason, ...(step && { step }), ...(problem && { problem }) };
        await this.record(vault, caller, "credential.connect_failed", { ...detail, ...why });
      }
      throw error;
    }
  }

  private record({ id, workspaceId }: Vault, { actor }: Caller, action: string, detail: object) {
    return this.deps.audit.record({ actor, action, subject: id, workspaceId, detail: { ...detail } });
  }
}

function callerOf(context: RpcContext): Caller {
  const principal = principalOf(context);
  return { actor: actorOf(principal), scope: scopeOf(principal), signal: context.signal };
}

function checkClient({ clientId, clientSecret, clientAuth }: StartConnectRequest): void {
  if (clientAuth !== "" && !CLIENT_AUTH.includes(clientAuth))
    throw invalidField("client_auth", `must be one of ${CLIENT_AUTH.join(", ")}`);
  if (clientId === "" && (clientSecret !== undefined || clientAuth !== ""))
    throw invalidField("client_id", "is needed with a secret of a client, or a way to prove one");
  const needsSecret = clientAuth.startsWith("client_secret_");
  if (needsSecret && clientSecret === undefined)
    throw invalidField("client_secret", `is needed for ${clientAuth}`);
  if (clientAuth === "none" && clientSecret !== undefined)
    throw invalidField("client_auth", "none goes without a secret");
}

function oauthUse(serverUrl: string, clientId = "") {
  return create(CredentialUseSchema, { kind: { case: "oauth", value: { serverUrl, clientId } } });
}

function sealedText(text: string, knownKeys: Parameters<typeof checkSealed>[1]) {
  return { text, keyId: checkSealed(text, knownKeys) };
}
