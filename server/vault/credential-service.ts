/** CredentialService: what only proxies may ask. Each use is in the audit log before the sealed text leaves the server (S5). */
import { durationFromMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import {
  gitDestinations,
  mcpDestination,
  normaliseServerUrl,
  variableDestination,
} from "../../kit/vault/destination.ts";
import { readSealed, SealError } from "../../kit/vault/sealed-content.ts";
import {
  type ClaimRefreshRequest,
  CredentialPurpose,
  type CredentialRecord,
  type CredentialService,
  type EndRefreshRequest,
  type RecordUsesRequest,
  RefreshClaim,
  type ResolveCredentialRequest,
  type StoreRefreshedRequest,
} from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { opening, resolvedCredential } from "../ports/credential-opening.ts";
import { actorOf, maySee, principalOf, scopeOf } from "../ports/principal.ts";
import type { AuditInput, AuditStore } from "../store/audit.ts";
import type { CredentialStore, RefreshClaimOutcome } from "../store/credentials.ts";

export interface CredentialServiceDeps {
  readonly credentials: CredentialStore;
  readonly audit: Pick<AuditStore, "record" | "recordUses">;
}

/** Longer than a token endpoint may take (mcp-proxy/credentials/oauth) and what is needed to store the answer. */
const REFRESH_CLAIM_MS = 25_000;

type Handled = Pick<
  ServiceImplementation<typeof CredentialService>,
  "resolveCredential" | "storeRefreshed" | "claimRefresh" | "endRefresh" | "recordUses"
>;

export class CredentialUses implements Handled {
  private readonly deps: CredentialServiceDeps;

  constructor(deps: CredentialServiceDeps) {
    this.deps = deps;
  }

  async resolveCredential(request: ResolveCredentialRequest, context: RpcContext) {
    const { sessionId, epoch, destination } = request;
    const { credentials } = this.deps;
    const wanted = destinationsOf(request);
    await this.checkSession(sessionId, epoch, context);
    const stored = await credentials.open(opening(sessionId, epoch, destination, wanted, context));
    if (stored?.sealed === undefined) {
      throw new TendonError("NOT_FOUND", "no vault of the session has a credential for this destination", {
        resource: "credential",
        id: sessionId,
      });
    }
    return resolvedCredential(stored);
  }

  async claimRefresh(request: ClaimRefreshRequest, context: RpcContext) {
    const { credentialId, version, claimId, refused, sessionId } = request;
    const outcome = await this.deps.credentials.claimRefresh({
      credentialId,
      workspaceId: scopeOf(principalOf(context)),
      version: Number(version),
      claimId,
      refused,
      ttlMs: REFRESH_CLAIM_MS,
      audit: entry(context, "credential.refresh_begin", credentialId, sessionId),
    });
    if (outcome === undefined) throw notFound("credential", credentialId);
    return claimMessage(outcome);
  }

  async storeRefreshed(request: StoreRefreshedRequest, context: RpcContext) {
    const { credentialId, expectedVersion, sealed, expiresAt } = request;
    const version = await this.deps.credentials.storeRefreshed({
      credentialId,
      workspaceId: scopeOf(principalOf(context)),
      expectedVersion: Number(expectedVersion),
      sealed: { text: sealed, keyId: keyIdOf(sealed) },
      expiresAtMs: expiresAt && timestampMs(expiresAt),
      audit: entry(context, "credential.refresh", credentialId, ""),
    });
    if (version === undefined) throw notFound("credential", credentialId);
    return { version: BigInt(version) };
  }

  async endRefresh(request: EndRefreshRequest, context: RpcContext) {
    const { credentialId, claimId, problem, final: isFinal, httpStatus } = request;
    const audit = entry(context, "credential.refresh_failed", credentialId, "");
    const known = await this.deps.credentials.endRefresh({
      credentialId,
      workspaceId: scopeOf(principalOf(context)),
      claimId,
      problem,
      isFinal,
      audit: { ...audit, detail: { final: isFinal, ...(httpStatus !== 0 && { http_status: httpStatus }) } },
    });
    if (known === undefined) throw notFound("credential", credentialId);
    return {};
  }

  async recordUses({ records }: RecordUsesRequest, context: RpcContext) {
    const actor = actorOf(principalOf(context));
    const entries = records.map((record) => ({ ...recordInput(record), actor }));
    await this.deps.audit.recordUses(entries, scopeOf(principalOf(context)));
    return {};
  }

  /** E1: the epoch is judged on the session's row. What is refused is in the audit log, too. */
  private async checkSession(sessionId: string, epoch: bigint, context: RpcContext): Promise<void> {
    const session = await this.deps.credentials.session(sessionId);
    if (session === undefined || !maySee(principalOf(context), session.workspaceId)) {
      throw notFound("session", sessionId);
    }
    if (session.epoch === epoch && !session.isArchived) return;
    const reason = session.isArchived ? "session_archived" : "lease_fenced";
    await this.deps.audit.record({
      ...entry(context, "credential.refuse", sessionId, sessionId),
      workspaceId: session.workspaceId,
      detail: { reason, epoch: String(epoch) },
    });
    if (session.isArchived)
      throw new TendonError("SESSION_ARCHIVED", "the session is archived", { id: sessionId });
    throw new TendonError("LEASE_FENCED", "a newer brain holds the session", {
      epoch: String(session.epoch),
    });
  }
}

function destinationsOf({ purpose, destination }: ResolveCredentialRequest): string[] {
  if (purpose === CredentialPurpose.VARIABLE) return [variableDestination(destination)];
  if (purpose === CredentialPurpose.GIT) {
    const found = gitDestinations(destination);
    if (found === undefined)
      throw invalidField("destination", "must be the URL of a repository, https://host/path");
    return found;
  }
  const url = normaliseServerUrl(destination);
  if (url === undefined) throw invalidField("destination", "must be the URL of an MCP server");
  return [mcpDestination(url)];
}

function keyIdOf(sealed: string): string {
  try {
    return readSealed(sealed).keyId;
  } catch (error) {
    if (error instanceof SealError) throw invalidField("sealed", error.message);
    throw error;
  }
}

const CLAIMS = {
  granted: RefreshClaim.GRANTED,
  held: RefreshClaim.HELD,
  changed: RefreshClaim.CHANGED,
  failed: RefreshClaim.FAILED,
  broken: RefreshClaim.BROKEN,
  fresh: RefreshClaim.FRESH,
} as const;

function claimMessage(outcome: RefreshClaimOutcome) {
  return {
    claim: CLAIMS[outcome.claim],
    problem: outcome.problem,
    ...("sealed" in outcome && { sealed: outcome.sealed, version: BigInt(outcome.version) }),
    ...("retryAfterMs" in outcome && { retryAfter: durationFromMs(Math.ceil(outcome.retryAfterMs)) }),
  };
}

function recordInput({ id, credentialId, sessionId, action, host, result, count }: CredentialRecord) {
  const detail = { host, result, ...(count > 1 && { count }) };
  return {
    id,
    credentialId,
    sessionId,
    action: `credential.${action}`,
    subject: credentialId || sessionId,
    detail,
  };
}

function entry(context: RpcContext, action: string, subject: string, sessionId: string): AuditInput {
  return { actor: actorOf(principalOf(context)), action, subject, ...(sessionId !== "" && { sessionId }) };
}
