/**
 * Refreshes OAuth tokens: one request for each expiry, over all proxies (S4, R20).
 *
 * F1 Nobody asks a token endpoint without a claim that the server has given for this version of the credential.
 * F2 A new token is stored before anybody uses it: what is used is what a crash leaves.
 * F3 In one process all who need the same credential wait for the same refresh.
 * F4 Failures are told to the server, which lets nobody try again before a pause that grows.
 */
import { create } from "@bufbuild/protobuf";
import { durationMs, timestampFromMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { Backoff } from "../../../kit/backoff.ts";
import { type Clock, within } from "../../../kit/clock.ts";
import { isTendonError, messageOf, TendonError } from "../../../kit/errors.ts";
import { failpoint } from "../../../kit/failpoint.ts";
import { newId } from "../../../kit/ids.ts";
import type { Logger } from "../../../kit/log.ts";
import type { Client } from "../../../kit/rpc/client.ts";
import { NO_TRACING, type TraceContext, type Tracing } from "../../../kit/trace.ts";
import {
  type ClaimRefreshResponse,
  type CredentialService,
  RefreshClaim,
} from "../../../proto/gen/tendon/v1/credential_service_pb.js";
import { type OauthUse, PlainSecretSchema } from "../../../proto/gen/tendon/v1/vault_service_pb.js";
import type { OutboundFetch } from "../../outbound/fetch.ts";
import { step } from "../../trace-steps.ts";
import type { Opened, Opener } from "../opener.ts";
import { CredentialRefusal } from "../refusal.ts";
import type { UseJournal } from "../use-journal.ts";
import { requestTokens, type Tokens, tokenHost } from "./token-endpoint.ts";

export interface RefresherDeps {
  readonly credentials: Pick<
    Client<typeof CredentialService>,
    "claimRefresh" | "storeRefreshed" | "endRefresh"
  >;
  readonly opener: Opener;
  readonly journal: UseJournal;
  readonly fetch: OutboundFetch;
  readonly clock: Clock;
  readonly log: Logger;
  /** Default: no spans. */
  readonly tracing?: Tracing;
}

export interface VersionedCredential {
  readonly opened: Opened;
  readonly version: bigint;
}

export type RefreshOutcome =
  /** A newer version, refreshed here or by another. */
  | {
      readonly kind: "newer";
      readonly credential: VersionedCredential;
      readonly refreshedHere: boolean;
      readonly httpStatus: number;
    }
  /** None, and why: an error code of the token endpoint or one of ours. */
  | { readonly kind: "none"; readonly problem: string; readonly httpStatus: number; readonly asked: boolean };

export interface RefreshNeed {
  /** The token was refused although its time is not over. */
  readonly refused: boolean;
  readonly sessionId: string;
  /** Whose step it is; of several who need it at once, the first one's. */
  readonly trace?: TraceContext | undefined;
}

const CALL_WITHIN_MS = 5_000;
/** For another proxy's refresh; its claim ends by itself before. */
const WAIT_MS = 35_000;
const LEAST_PAUSE_MS = 50;
/** How long whoever needs the token waits until it is stored. The storing itself is tried for longer: the token is lost without. */
const STORED_WITHIN_MS = 10_000;
const STORE_FOR_MS = 600_000;
const STORE_BACKOFF = { firstMs: 100, maxMs: 5_000, resetAfterMs: Number.POSITIVE_INFINITY };

export class Refresher {
  private readonly deps: RefresherDeps;
  private readonly running = new Map<string, Promise<RefreshOutcome>>();

  constructor(deps: RefresherDeps) {
    this.deps = deps;
  }

  /** Rejects with a TendonError when the server cannot be asked. */
  refresh(credential: VersionedCredential, need: RefreshNeed): Promise<RefreshOutcome> {
    const key = `${credential.opened.credentialId} ${credential.version}`;
    const known = this.running.get(key);
    if (known !== undefined) return known;
    const attributes = { "tendon.credential_id": credential.opened.credentialId };
    const { tracing = NO_TRACING } = this.deps;
    const run = step(tracing, "refresh", { parent: need.trace, attributes }, async (span) => {
      const outcome = await this.run(credential, need);
      span.set({ "tendon.refresh.outcome": outcome.kind });
      return outcome;
    }).finally(() => this.running.delete(key));
    this.running.set(key, run);
    return run;
  }

  private async run(credential: VersionedCredential, need: RefreshNeed): Promise<RefreshOutcome> {
    const { opened, version } = credential;
    const { kind } = opened.use;
    if (kind.case !== "oauth" || kind.value.tokenEndpoint === "" || opened.secret.refreshToken === "") {
      return { kind: "none", problem: "no_refresh_token", httpStatus: 0, asked: false };
    }
    const claimId = newId("request");
    const answer = await this.claim(credential, claimId, need);
    switch (answer.claim) {
      case RefreshClaim.GRANTED:
        return this.refreshNow(credential, kind.value, claimId, need);
      case RefreshClaim.CHANGED: {
        const newer = { opened: await this.deps.opener.open(answer.sealed, opened), version: answer.version };
        return { kind: "newer", credential: newer, refreshedHere: false, httpStatus: 0 };
      }
      default:
        this.deps.log.debug(
          { credentialId: opened.credentialId, version, claim: answer.claim },
          "no refresh now",
        );
        return { kind: "none", problem: answer.problem || "just_refreshed", httpStatus: 0, asked: false };
    }
  }

  /** Asks until the claim is not another's any more. */
  private async claim(
    { opened, version }: VersionedCredential,
    claimId: string,
    { refused, sessionId }: RefreshNeed,
  ): Promise<ClaimRefreshResponse> {
    const { clock, credentials } = this.deps;
    const untilMs = clock.monotonicMs() + WAIT_MS;
    const request = { credentialId: opened.credentialId, version, claimId, refused, sessionId };
    for (;;) {
      const answer = await credentials.claimRefresh(request, { deadlineMs: CALL_WITHIN_MS });
      const isHeld = answer.claim === RefreshClaim.HELD;
      if (!isHeld || clock.monotonicMs() > untilMs) return answer;
      await clock.sleep(Math.max(LEAST_PAUSE_MS, answer.retryAfter ? durationMs(answer.retryAfter) : 0));
    }
  }

  private async refreshNow(
    credential: VersionedCredential,
    use: OauthUse,
    claimId: string,
    need: RefreshNeed,
  ): Promise<RefreshOutcome> {
    const { credentials, journal } = this.deps;
    const { sessionId } = need;
    const { credentialId } = credential.opened;
    failpoint("proxy.refresh_claimed");
    const outcome = await requestTokens(this.deps, use, credential.opened.secret);
    const result = outcome.kind === "tokens" ? String(outcome.httpStatus) : outcome.problem;
    journal.record({ credentialId, sessionId, action: "refresh", host: tokenHost(use), result });
    if (outcome.kind === "failure") {
      const { problem, isFinal, httpStatus } = outcome;
      const end = { credentialId, claimId, problem, final: isFinal, httpStatus };
      await credentials.endRefresh(end, { deadlineMs: CALL_WITHIN_MS });
      return { kind: "none", problem, httpStatus, asked: true };
    }
    failpoint("proxy.token_refreshed");
    const renewed = withTokens(credential.opened, outcome.tokens);
    const version = await this.store(credential, renewed, outcome.tokens, claimId);
    // Somebody gave the credential another secret meanwhile: that one counts.
    if (version === undefined) return this.run(credential, need);
    failpoint("proxy.token_stored");
    const newer = { opened: renewed, version };
    return { kind: "newer", credential: newer, refreshedHere: true, httpStatus: outcome.httpStatus };
  }

  /** F2. Undefined when another version was stored meanwhile. Whoever waits gives up after a while; the storing goes on, for the old refresh token may be good for nothing by now. */
  private async store(
    { opened, version }: VersionedCredential,
    renewed: Opened,
    { expiresAtMs }: Tokens,
    claimId: string,
  ): Promise<bigint | undefined> {
    const { clock, opener } = this.deps;
    const request = {
      credentialId: opened.credentialId,
      expectedVersion: version,
      sealed: await opener.seal(renewed),
      claimId,
      ...(expiresAtMs !== undefined && { expiresAt: timestampFromMs(expiresAtMs) }),
    };
    const storing = this.keepStoring(request);
    storing.catch(() => {});
    const tooLate = () =>
      new TendonError("UNAVAILABLE", "the refreshed token could not be stored yet; try again");
    return within(clock, STORED_WITHIN_MS, storing, tooLate);
  }

  private async keepStoring(
    request: Parameters<RefresherDeps["credentials"]["storeRefreshed"]>[0],
  ): Promise<bigint | undefined> {
    const { clock, credentials, log } = this.deps;
    const backoff = new Backoff(clock, STORE_BACKOFF);
    const untilMs = clock.monotonicMs() + STORE_FOR_MS;
    for (;;) {
      try {
        return (await credentials.storeRefreshed(request, { deadlineMs: CALL_WITHIN_MS })).version;
      } catch (error) {
        if (isTendonError(error, "VERSION_MISMATCH")) return undefined;
        const passes = error instanceof TendonError && PASSING.has(error.reason);
        if (!passes || clock.monotonicMs() > untilMs) {
          log.error(
            { credentialId: request.credentialId, error: messageOf(error) },
            "a refreshed token is lost",
          );
          throw error;
        }
        await clock.sleep(backoff.nextDelayMs());
      }
    }
  }
}

const PASSING = new Set(["UNAVAILABLE", "DEADLINE_EXCEEDED", "DRAINING", "INTERNAL"]);

function withTokens(opened: Opened, { accessToken, refreshToken, expiresAtMs }: Tokens): Opened {
  const { secret } = opened;
  const renewed = create(PlainSecretSchema, {
    value: accessToken,
    refreshToken: refreshToken ?? secret.refreshToken,
    clientSecret: secret.clientSecret,
    ...(expiresAtMs !== undefined && { expiresAt: timestampFromMs(expiresAtMs) }),
  });
  return { ...opened, secret: renewed };
}

/** When its access token is over, by the wall clock; undefined when that is not known. */
export function expiryOf({ secret }: Opened): number | undefined {
  return secret.expiresAt === undefined ? undefined : timestampMs(secret.expiresAt);
}

/** Of a credential whose token is over and cannot be refreshed. */
export function tokenExpired(problem: string): CredentialRefusal {
  return new CredentialRefusal(
    "TOKEN_EXPIRED",
    `the access token is over and was not refreshed: ${problem}`,
    problem,
  );
}
