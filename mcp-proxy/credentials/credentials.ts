/**
 * Credentials for requests of sessions. Every request asks the server anew, which checks session and epoch (S3) and writes the
 * audit log, so a new secret, an archived vault or a newer brain counts from the next request on.
 */
import type { Clock } from "../../kit/clock.ts";
import { isTendonError } from "../../kit/errors.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { TraceContext } from "../../kit/trace.ts";
import { isAllowedHost } from "../../kit/vault/allowed-hosts.ts";
import {
  destinationOf,
  gitDestinations,
  hostOf,
  mcpDestination,
  normaliseServerUrl,
  variableDestination,
} from "../../kit/vault/destination.ts";
import {
  CredentialPurpose,
  type CredentialService,
  type ResolveCredentialResponse,
} from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { injectedHeaders, knownValues } from "./injection.ts";
import { expiryOf, type Refresher, tokenExpired, type VersionedCredential } from "./oauth/refresher.ts";
import type { Opened, Opener } from "./opener.ts";
import { CredentialRefusal } from "./refusal.ts";
import type { UseJournal } from "./use-journal.ts";

export interface CredentialsDeps {
  readonly credentials: Pick<Client<typeof CredentialService>, "resolveCredential">;
  readonly opener: Opener;
  readonly refresher: Refresher;
  readonly journal: UseJournal;
  readonly clock: Clock;
}

/** Of a session token that was verified, and what it wants to reach. */
export interface CredentialNeed {
  readonly sessionId: string;
  readonly workspaceId: string;
  readonly epoch: bigint;
  /** URL of an MCP server or of a repository. */
  readonly destination: string;
  readonly purpose: CredentialPurpose.MCP | CredentialPurpose.GIT;
  /** Where its steps stand in a trace. */
  readonly trace?: TraceContext | undefined;
}

/** A credential that may be used for one destination of one session, now. */
export interface Grant {
  readonly credentialId: string;
  readonly vaultId: string;
  readonly isOauth: boolean;
  /** Globs of the branches that a git credential may push to; empty: all. */
  readonly pushBranches: readonly string[];
  /** To add to the request; they replace the client's own of these names. */
  readonly headers: Readonly<Record<string, string>>;
  /** To take out of what comes back. */
  readonly secrets: readonly string[];
  /** Records that it was sent; `result` is the answer's HTTP status, or a reason in lower case. */
  used(result: string): void;
  /** After a 401: a newer one, refreshed here or by another meanwhile. Undefined: there is none, and the 401 stands. */
  renewed(): Promise<Grant | undefined>;
}

/** A variable that a sandbox of a session names by its placeholder, towards one host. */
export interface VariableNeed {
  readonly sessionId: string;
  readonly workspaceId: string;
  readonly epoch: bigint;
  readonly name: string;
  /** Lower case, without a dot at its end. */
  readonly host: string;
  /** As the audit log names it: with its port where that is not 443. */
  readonly place: string;
}

/** A variable's value that may be put in for this host, now. */
export interface VariableGrant {
  readonly name: string;
  readonly value: string;
  readonly inHeaders: boolean;
  readonly inBody: boolean;
  /** Records that it was put in; `result` is the answer's HTTP status, or a reason in lower case. */
  used(result: string): void;
  /** Records that a placeholder of it was left as it was. */
  left(reason: string): void;
}

interface Resolvable extends Pick<CredentialNeed, "sessionId" | "workspaceId" | "epoch" | "destination"> {
  readonly purpose: CredentialPurpose;
}

/** What the server has just found for a need, in the audit log by then; "none": it has none. For one use. */
export type Resolved = ResolveCredentialResponse | "none";

const CALL_WITHIN_MS = 5_000;
/** How long before its end a token is refreshed. */
const AHEAD_MS = 60_000;

export class Credentials {
  private readonly deps: CredentialsDeps;

  constructor(deps: CredentialsDeps) {
    this.deps = deps;
  }

  /**
   * Undefined when no vault of the session has one. Throws a CredentialRefusal, which is in the audit log by then, and
   * LEASE_FENCED, SESSION_ARCHIVED, NOT_FOUND or UNAVAILABLE as the server says.
   */
  async grant(need: CredentialNeed, given?: Resolved): Promise<Grant | undefined> {
    // Plain HTTP behind a hand agent is read by who carries it: no credential has such a destination.
    if (need.destination.startsWith("hand-agent+http:")) return undefined;
    this.deps.journal.requireRoom();
    const resolved = given ?? (await this.resolve(need));
    if (resolved === undefined || resolved === "none") return undefined;
    try {
      const credential = { opened: await this.open(resolved, need), version: resolved.version };
      return this.toGrant(await this.fresh(credential, need), need);
    } catch (error) {
      if (error instanceof CredentialRefusal) this.refuse(resolved.credentialId, need, error);
      throw error;
    }
  }

  /**
   * Undefined when the session has no such variable, or it is for other hosts; then its placeholder stays, and the audit log
   * says so. Throws as `grant` does.
   */
  async variable(need: VariableNeed): Promise<VariableGrant | undefined> {
    const { name, host, place, sessionId } = need;
    const { journal } = this.deps;
    journal.requireRoom();
    const purpose = CredentialPurpose.VARIABLE as const;
    const wanted = { ...need, destination: name, purpose };
    const resolved = await this.resolve(wanted);
    const credentialId = resolved?.credentialId ?? "";
    const record = (action: "inject" | "refuse", result: string) =>
      journal.record({ credentialId, sessionId, action, host: place, result });
    if (resolved === undefined) {
      record("refuse", "no_such_variable");
      return undefined;
    }
    let opened: Opened;
    try {
      opened = await this.open(resolved, wanted);
    } catch (error) {
      if (error instanceof CredentialRefusal) record("refuse", error.reason.toLowerCase());
      throw error;
    }
    const { kind } = opened.use;
    if (kind.case !== "environmentVariable" || !isAllowedHost(host, kind.value.allowedHosts)) {
      record("refuse", "host_not_allowed");
      return undefined;
    }
    const { inHeaders, inBody } = kind.value;
    return {
      name,
      value: opened.secret.value,
      inHeaders,
      inBody,
      used: (result) => record("inject", result),
      left: (reason) => record("refuse", reason),
    };
  }

  private async resolve(need: Resolvable): Promise<ResolveCredentialResponse | undefined> {
    const { sessionId, epoch, destination, purpose } = need;
    try {
      const request = { sessionId, epoch, destination, purpose };
      return await this.deps.credentials.resolveCredential(request, { deadlineMs: CALL_WITHIN_MS });
    } catch (error) {
      if (isTendonError(error, "NOT_FOUND") && error.metadata.resource === "credential") return undefined;
      throw error;
    }
  }

  /** Obeys the sealed use alone: the workspace must be the token's, and the destination the one that is wanted. */
  private async open(resolved: ResolveCredentialResponse, need: Resolvable): Promise<Opened> {
    const { credentialId, vaultId, workspaceId, sealed } = resolved;
    if (workspaceId !== need.workspaceId) {
      throw new CredentialRefusal(
        "SEAL_OF_ANOTHER",
        "the credential belongs to another workspace than the session",
      );
    }
    const opened = await this.deps.opener.open(sealed, { workspaceId, vaultId, credentialId });
    const inside = destinationOf(opened.use);
    if (inside !== undefined && wantedDestinations(need).includes(inside)) return opened;
    throw new CredentialRefusal(
      "DESTINATION_DIFFERS",
      "the credential is sealed for another destination than this one",
    );
  }

  /** Refreshed where its token is over, or soon will be. */
  private async fresh(
    credential: VersionedCredential,
    { sessionId, trace }: CredentialNeed,
  ): Promise<VersionedCredential> {
    const { clock, refresher } = this.deps;
    const expiresAtMs = expiryOf(credential.opened);
    const isOver = credential.opened.secret.value === "" || (expiresAtMs ?? Infinity) <= clock.nowMs();
    if (!isOver && (expiresAtMs ?? Infinity) - AHEAD_MS > clock.nowMs()) return credential;
    const outcome = await refresher.refresh(credential, { refused: false, sessionId, trace });
    if (outcome.kind === "newer") return outcome.credential;
    if (isOver) throw tokenExpired(outcome.problem);
    return credential;
  }

  private toGrant(credential: VersionedCredential, need: CredentialNeed): Grant {
    const { opened } = credential;
    const { credentialId, vaultId } = opened;
    const { sessionId, destination } = need;
    const isOauth = opened.use.kind.case === "oauth";
    const host = hostOf(destination);
    return {
      credentialId,
      vaultId,
      isOauth,
      pushBranches: opened.use.kind.case === "git" ? opened.use.kind.value.pushBranches : [],
      headers: injectedHeaders(opened),
      secrets: knownValues(opened),
      used: (result) => this.deps.journal.record({ credentialId, sessionId, action: "inject", host, result }),
      renewed: async () => {
        if (!isOauth) return undefined;
        const outcome = await this.deps.refresher.refresh(credential, {
          refused: true,
          sessionId,
          trace: need.trace,
        });
        return outcome.kind === "newer" ? this.toGrant(outcome.credential, need) : undefined;
      },
    };
  }

  private refuse(credentialId: string, need: CredentialNeed, refusal: CredentialRefusal): void {
    const host = hostOf(need.destination);
    const result = refusal.reason.toLowerCase();
    this.deps.journal.record({ credentialId, sessionId: need.sessionId, action: "refuse", host, result });
  }
}

function wantedDestinations({ purpose, destination }: Resolvable): readonly string[] {
  if (purpose === CredentialPurpose.VARIABLE) return [variableDestination(destination)];
  if (purpose === CredentialPurpose.GIT) return gitDestinations(destination) ?? [];
  const url = normaliseServerUrl(destination);
  return url === undefined ? [] : [mcpDestination(url)];
}
