/** Makes and changes credentials: the secret is sealed before anything else is done with it, and nothing keeps it. */
import { create, equals } from "@bufbuild/protobuf";
import { timestampMs } from "@bufbuild/protobuf/wkt";
import { contentHash } from "../../kit/canonical-json.ts";
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNulIn } from "../../kit/nul.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import { Turns } from "../../kit/turns.ts";
import { hostOf } from "../../kit/vault/destination.ts";
import {
  type CreateCredentialRequest,
  CreateCredentialRequestSchema,
  type Credential,
  type CredentialSecret,
  type CredentialUse,
  CredentialUseSchema,
  type PlainSecret,
  type UpdateCredentialRequest,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { actorOf, principalOf, scopeOf } from "../ports/principal.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import { madeOnce } from "../ports/repeated-creation.ts";
import type { SealedFor } from "../ports/secret-sealing.ts";
import type {
  CredentialChange,
  CredentialStore,
  SealedText,
  StoredCredential,
} from "../store/credentials.ts";
import { type RequestIdStore, SCOPES } from "../store/request-ids.ts";
import type { VaultStore } from "../store/vaults.ts";
import { reseal } from "./proxy-asks.ts";
import { checkSealed, checkSecret, checkUse } from "./rules.ts";
import type { Sealing } from "./sealing.ts";

export interface CredentialChangesDeps {
  readonly vaults: Pick<VaultStore, "find">;
  readonly credentials: CredentialStore;
  readonly requestIds: Pick<RequestIdStore, "madeBy">;
  readonly proxies: Pick<ProxyDirectory, "ask">;
  readonly sealing: Sealing;
}

export class CredentialChanges {
  private readonly deps: CredentialChangesDeps;
  private readonly turns = new Turns("credential");

  constructor(deps: CredentialChangesDeps) {
    this.deps = deps;
  }

  async create(request: CreateCredentialRequest, context: RpcContext): Promise<Credential> {
    const { vaultId, displayName, metadata, requestId, secret } = request;
    refuseNulIn({ displayName, metadata, requestId });
    const { use, destination } = checkUse(request.use);
    const scope = scopeOf(principalOf(context));
    const vault = await this.deps.vaults.find(vaultId, scope);
    if (vault === undefined) throw notFound("vault", vaultId);
    if (secret?.form.case === "sealed" && request.credentialId === "") {
      throw invalidField("credential_id", "is needed with a sealed secret, which names it inside");
    }
    const id = request.credentialId || newId("credential");
    const whose = { workspaceId: vault.workspaceId, vaultId, credentialId: id };
    const made = { requestId, contentHash: hashWithoutSecret(request) };
    const audit = {
      actor: actorOf(principalOf(context)),
      action: "credential.create",
      subject: id,
      detail: {
        vault_id: vaultId,
        ...describe(use),
        sealed_by: secret?.form.case === "sealed" ? "caller" : "server",
      },
    };
    const make = async () => {
      const names = { id, vaultId, workspaceId: scope, displayName, metadata: { ...metadata } };
      const sealed = await this.sealWhole(whose, use, secret);
      return this.deps.credentials.create({ ...names, use, destination, ...sealed, request: made, audit });
    };
    const claim = { ...made, workspaceId: vault.workspaceId, scope: SCOPES.credential };
    const credential = await madeOnce(this.deps.requestIds, claim, make, async (first) => {
      return (await this.deps.credentials.find(first, scope))?.credential;
    });
    if (credential === undefined) throw notFound("vault", vaultId);
    return credential;
  }

  async update(request: UpdateCredentialRequest, context: RpcContext): Promise<Credential> {
    const { credentialId, displayName, metadata } = request;
    refuseNulIn({ displayName, metadata });
    const scope = scopeOf(principalOf(context));
    return this.turns.untilDone(credentialId, async () => {
      const stored = await this.deps.credentials.find(credentialId, scope);
      if (stored === undefined) throw notFound("credential", credentialId);
      const { secret, changed } = await this.newSecret(request, stored, context.signal);
      const detail = { changed, ...(secret && describe(secret.use)) };
      const updated = await this.deps.credentials.update({
        credentialId,
        workspaceId: scope,
        displayName,
        metadata: { ...metadata },
        secret,
        audit: {
          actor: actorOf(principalOf(context)),
          action: changed.includes("use") ? "credential.redirect" : "credential.update",
          subject: credentialId,
          detail,
        },
      });
      if (updated === undefined) throw notFound("credential", credentialId);
      return updated;
    });
  }

  /** What is sealed from now on, when that changes. */
  private async newSecret(
    request: UpdateCredentialRequest,
    stored: StoredCredential,
    signal: AbortSignal,
  ): Promise<{ secret: CredentialChange["secret"]; changed: string[] }> {
    const { credential, workspaceId, sealed: before, version } = stored;
    const names = Object.keys(request.metadata).length > 0 ? ["metadata"] : [];
    if (request.displayName !== undefined) names.push("display_name");
    if (before === undefined) {
      throw new TendonError("CREDENTIAL_ARCHIVED", `the credential "${credential.id}" is archived`, {
        id: credential.id,
      });
    }
    const { use, destination, isSame } = newUse(credential.use!, request.use);
    if (request.secret === undefined && isSame) return { secret: undefined, changed: names };
    const changed = [
      ...names,
      ...(isSame ? [] : ["use"]),
      ...(request.secret === undefined ? [] : ["secret"]),
    ];
    const whose = { workspaceId, vaultId: credential.vaultId, credentialId: credential.id };
    const common = { use, destination, isNew: request.secret !== undefined };
    const plain = request.secret?.form.case === "plain" ? request.secret.form.value : undefined;
    if (request.secret !== undefined && !(plain !== undefined && request.keepRestOfSecret)) {
      const { sealed, expiresAtMs } = await this.sealWhole(whose, use, request.secret);
      return {
        secret: { ...common, expectedVersion: undefined, sealed, expiresAtMs, expiry: "set" },
        changed,
      };
    }
    if (plain !== undefined) checkSecret(use, plain, true);
    const part = plain && (await this.deps.sealing.seal(whose, use, plain));
    const options = { use: isSame ? undefined : use, secret: part, signal };
    const sealed = await reseal(this.deps.proxies, { ...stored, sealed: before }, options);
    const expiresAtMs = expiryOf(plain);
    return { secret: { ...common, expectedVersion: version, sealed, expiresAtMs, expiry: "keep" }, changed };
  }

  private async sealWhole(
    whose: SealedFor,
    use: CredentialUse,
    secret: CredentialSecret | undefined,
  ): Promise<{ sealed: SealedText; expiresAtMs: number | undefined }> {
    const form = secret?.form;
    if (form?.case === "sealed") {
      const keyId = checkSealed(form.value, await this.deps.sealing.knownKeys());
      return { sealed: { text: form.value, keyId }, expiresAtMs: undefined };
    }
    if (form?.case !== "plain") throw invalidField("secret", "must be set");
    checkSecret(use, form.value, false);
    return {
      sealed: await this.deps.sealing.seal(whose, use, form.value),
      expiresAtMs: expiryOf(form.value),
    };
  }
}

/** The use after an update. Throws INVALID_FIELD when it is of another kind. */
function newUse(before: CredentialUse, wanted: CredentialUse | undefined) {
  const { use, destination } = checkUse(wanted ?? before);
  if (use.kind.case !== before.kind.case) {
    throw invalidField("use", "must be of the same kind; archive the credential and make another");
  }
  return { use, destination, isSame: equals(CredentialUseSchema, use, before) };
}

function expiryOf(secret: PlainSecret | undefined): number | undefined {
  return secret?.expiresAt === undefined ? undefined : timestampMs(secret.expiresAt);
}

/** A hash of the secret would let whoever has the database guess it: repeats are told by all the rest. */
function hashWithoutSecret({
  vaultId,
  displayName,
  use,
  metadata,
  credentialId,
}: CreateCredentialRequest): Uint8Array {
  const rest = create(CreateCredentialRequestSchema, {
    vaultId,
    displayName,
    metadata,
    credentialId,
    ...(use && { use }),
  });
  return contentHash(CreateCredentialRequestSchema, rest);
}

/** For the audit log. */
function describe({ kind }: CredentialUse): Record<string, unknown> {
  switch (kind.case) {
    case "oauth":
      return {
        kind: "oauth",
        host: hostOf(kind.value.serverUrl),
        token_host: hostOf(kind.value.tokenEndpoint),
      };
    case "staticBearer":
      return { kind: "static_bearer", host: hostOf(kind.value.serverUrl) };
    case "header":
      return { kind: "header", host: hostOf(kind.value.serverUrl) };
    case "git":
      return { kind: "git", host: hostOf(kind.value.url) };
    case "environmentVariable":
      return { kind: "environment_variable", name: kind.value.name, hosts: kind.value.allowedHosts };
    case undefined:
      return {};
  }
}
