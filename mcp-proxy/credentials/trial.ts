/** Tries a credential against its destination. What the far side answers is never repeated but for its status. */
import type { Clock } from "../../kit/clock.ts";
import { hostOf, normaliseServerUrl } from "../../kit/vault/destination.ts";
import { CredentialValidity } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { OutboundFetch } from "../outbound/fetch.ts";
import { OutboundRefusal } from "../outbound/refusal.ts";
import { injectedHeaders } from "./injection.ts";
import { endProbeSession, mcpProbe, type Probe } from "./mcp-probe.ts";
import {
  expiryOf,
  type Refresher,
  type RefreshOutcome,
  type VersionedCredential,
} from "./oauth/refresher.ts";
import type { Opened } from "./opener.ts";

export interface TrialDeps {
  readonly fetch: OutboundFetch;
  readonly refresher: Refresher;
  readonly clock: Clock;
}

/** As ValidateCredentialResponse. */
export interface TrialResult {
  validity: CredentialValidity;
  detail: string;
  httpStatus: number;
  refreshed: boolean;
  hasRefreshToken: boolean;
  refreshStatus: string;
  refreshHttpStatus: number;
  probed: boolean;
}

const ANSWER_WITHIN_MS = 10_000;

/** Does not reject for what the far side does. */
export async function tryCredential(deps: TrialDeps, credential: VersionedCredential): Promise<TrialResult> {
  const result: TrialResult = {
    validity: CredentialValidity.UNKNOWN,
    detail: "",
    httpStatus: 0,
    refreshed: false,
    hasRefreshToken: credential.opened.secret.refreshToken !== "",
    refreshStatus: "",
    refreshHttpStatus: 0,
    probed: false,
  };
  const current = await refreshed(deps, credential, result);
  if (current === undefined) return result;
  await probe(deps, current.opened, result);
  // Another's refresh, or ours, may have come after this one was read.
  if (result.httpStatus !== 401 || current.opened.use.kind.case !== "oauth" || result.refreshStatus !== "")
    return result;
  const outcome = await deps.refresher.refresh(current, { refused: true, sessionId: "" });
  told(outcome, result);
  if (outcome.kind === "newer") await probe(deps, outcome.credential.opened, result);
  else if (outcome.asked && !GONE.has(outcome.problem)) {
    // The grant may be good all the same: whoever could say so could not be asked.
    result.validity = CredentialValidity.UNKNOWN;
    result.detail = `the destination refused the access token, which was not refreshed: ${outcome.problem}`;
  }
  return result;
}

/** Undefined when its token is over and there is no other; then the result says why. */
async function refreshed(
  { clock, refresher }: TrialDeps,
  credential: VersionedCredential,
  result: TrialResult,
): Promise<VersionedCredential | undefined> {
  const { opened } = credential;
  const isOver = opened.secret.value === "" || (expiryOf(opened) ?? Infinity) <= clock.nowMs();
  if (opened.use.kind.case !== "oauth" || !isOver) return credential;
  const outcome = await refresher.refresh(credential, { refused: false, sessionId: "" });
  told(outcome, result);
  if (outcome.kind === "newer") return outcome.credential;
  const isGone = GONE.has(outcome.problem);
  result.validity = isGone ? CredentialValidity.INVALID : CredentialValidity.UNKNOWN;
  result.detail = `the access token is over and was not refreshed: ${outcome.problem}`;
  return undefined;
}

/** Problems that only a new secret mends. */
const GONE = new Set([
  "invalid_grant",
  "invalid_client",
  "unauthorized_client",
  "unsupported_grant_type",
  "no_refresh_token",
  "unfinished_refresh",
]);

function told(outcome: RefreshOutcome, result: TrialResult): void {
  result.refreshHttpStatus = outcome.httpStatus;
  if (outcome.kind === "newer") {
    result.refreshed = outcome.refreshedHere;
    result.refreshStatus = outcome.refreshedHere ? "succeeded" : "";
  } else if (outcome.asked) result.refreshStatus = outcome.httpStatus > 0 ? "failed" : "connect_error";
}

async function probe(deps: TrialDeps, opened: Opened, result: TrialResult): Promise<void> {
  const request = probeOf(opened);
  if (typeof request === "string") {
    result.detail = request;
    return;
  }
  result.probed = true;
  const limit = new AbortController();
  const stop = deps.clock.after(ANSWER_WITHIN_MS, () => limit.abort());
  try {
    const response = await deps.fetch(request.url, { ...request.init, signal: limit.signal });
    await response.body?.cancel();
    judge(response.status, result);
    await endProbeSession(deps.fetch, request, response, limit.signal);
  } catch (error) {
    result.validity = CredentialValidity.UNKNOWN;
    result.detail =
      error instanceof OutboundRefusal ? error.message : "the destination did not answer in time";
  } finally {
    stop();
  }
}

function judge(status: number, result: TrialResult): void {
  result.httpStatus = status;
  if (status >= 200 && status < 300) {
    result.validity = CredentialValidity.VALID;
    result.detail = "";
  } else if (status >= 400 && status < 500 && status !== 408 && status !== 429) {
    result.validity = CredentialValidity.INVALID;
    result.detail = `the destination refused it with ${status}`;
  } else {
    result.validity = CredentialValidity.UNKNOWN;
    result.detail = `the destination answered ${status}`;
  }
}

/** The request, or why there is none. */
function probeOf(opened: Opened): Probe | string {
  const { kind } = opened.use;
  const headers = injectedHeaders(opened);
  if (kind.case === "git") {
    const url = kind.value.url.replace(/\/+$/, "");
    if (new URL(url).pathname === "/")
      return "it is for a whole host; only one for a repository can be tried";
    return { url: `${url}/info/refs?service=git-upload-pack`, init: { headers, redirect: "same-origin" } };
  }
  if (kind.case === "environmentVariable" || kind.case === undefined)
    return "the value of a variable cannot be tried";
  if (normaliseServerUrl(kind.value.serverUrl)?.startsWith("hand-agent:"))
    return "its server is reached through a hand agent, from where it cannot be tried";
  return mcpProbe(kind.value.serverUrl, headers);
}

/** For the audit log. */
export function trialHost({ use: { kind } }: Opened): string {
  if (kind.case === "git") return hostOf(kind.value.url);
  return kind.case === "environmentVariable" || kind.case === undefined ? "" : hostOf(kind.value.serverUrl);
}
