/**
 * OAuth's authorization code with PKCE, for MCP servers. A connect is begun and ended by proxies; what is between the two is
 * a browser, somebody who decides, and a state that only proxies read.
 */
import { createHash, randomBytes } from "node:crypto";
import { create, toJsonString } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import type { Clock } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import { failpoint } from "../../../kit/failpoint.ts";
import type { Logger } from "../../../kit/log.ts";
import type { AskFinishConnect, AskStartConnect } from "../../../proto/gen/tendon/v1/proxy_service_pb.js";
import { CredentialUseSchema, PlainSecretSchema } from "../../../proto/gen/tendon/v1/vault_service_pb.js";
import type { OutboundFetch } from "../../outbound/fetch.ts";
import type { SealingKeys } from "../../sealing-key.ts";
import type { Answer } from "../asks.ts";
import { exchangeCode } from "../oauth/token-endpoint.ts";
import type { Opener } from "../opener.ts";
import { CredentialRefusal } from "../refusal.ts";
import { knownClient, type OauthClient, registerClient } from "./client.ts";
import { type ConnectState, ConnectStates } from "./connect-state.ts";
import { type Discovered, discover } from "./discovery.ts";
import { ConnectFailed, StateRefused } from "./failure.ts";
import { FarSide } from "./far-side.ts";

export interface ConnectsDeps {
  readonly keys: SealingKeys;
  readonly opener: Pick<Opener, "open" | "seal">;
  readonly fetch: OutboundFetch;
  readonly clock: Clock;
  readonly log: Logger;
}

/** What browsers and servers take; more is refused by some of them. */
const MAX_URL_CHARS = 8_192;
/** For whoever has to sign in somewhere first. */
const LIFE_MS = 600_000;
/** Of RFC 6749 and OpenID; others are not repeated. */
const REFUSALS = new Set([
  "access_denied",
  "invalid_request",
  "invalid_scope",
  "invalid_target",
  "unauthorized_client",
  "unsupported_response_type",
  "server_error",
  "temporarily_unavailable",
  "login_required",
  "consent_required",
  "interaction_required",
]);

export class Connects {
  private readonly deps: ConnectsDeps;
  private readonly states: ConnectStates;

  constructor(deps: ConnectsDeps) {
    this.deps = deps;
    this.states = new ConnectStates(deps.keys);
  }

  /** Does not reject. */
  start(ask: AskStartConnect): Promise<Answer> {
    return this.answered(() => this.startNow(ask));
  }

  /** Does not reject. */
  finish(ask: AskFinishConnect): Promise<Answer> {
    return this.answered(() => this.finishNow(ask));
  }

  private async startNow(ask: AskStartConnect): Promise<Answer> {
    const far = new FarSide(this.deps, ask.serverUrl);
    const clientSecret = await this.clientSecretOf(ask);
    const discovered = await discover(far, this.deps.fetch, ask);
    const scope = ask.scope || discovered.scope;
    const client =
      ask.clientId === ""
        ? await registerClient(far, discovered.server, { ...ask, scope })
        : knownClient(discovered.server, { clientId: ask.clientId, clientSecret, wanted: ask.clientAuth });
    const state = this.stateOf(ask, { discovered, scope, client });
    const { issuer, authorizationEndpoint } = discovered.server;
    const started = {
      authorizationUrl: authorizationUrl(authorizationEndpoint, state).href,
      connectState: await this.states.seal(state),
      state: state.state,
      expiresAt: timestampFromMs(state.expiresAtMs),
    };
    const { clientId, registered } = client;
    return { connectStarted: { ...started, issuer, clientId, registered, scope } };
  }

  private async finishNow(ask: AskFinishConnect): Promise<Answer> {
    const { clock, opener } = this.deps;
    const state = await this.states.open(ask.connectState);
    checkOwner(state, ask, clock.nowMs());
    checkAnswer(state, ask);
    const { value: code } = (await opener.open(ask.code, partOf(ask))).secret;
    const { clientSecret, redirectUri, verifier } = state;
    const { serverUrl, tokenEndpoint, clientId, clientAuth, scope, resource, issuer } = state;
    const use = create(CredentialUseSchema, {
      kind: {
        case: "oauth",
        value: { serverUrl, tokenEndpoint, clientId, clientAuth, scope, resource },
      },
    });
    const client = create(PlainSecretSchema, { clientSecret });
    if (use.kind.case !== "oauth") throw new Error("a connect is for OAuth");
    const outcome = await exchangeCode(this.deps, use.kind.value, client, { code, redirectUri, verifier });
    if (outcome.kind === "failure") {
      const { problem, httpStatus } = outcome;
      const message = `${new URL(tokenEndpoint).host} gave no tokens for the code: ${problem}; begin another connect`;
      throw new ConnectFailed("token", problem, message, httpStatus);
    }
    failpoint("proxy.code_traded");
    const { accessToken, refreshToken = "", expiresAtMs, scope: granted } = outcome.tokens;
    use.kind.value.scope = granted ?? scope;
    const expiresAt = expiresAtMs === undefined ? undefined : timestampFromMs(expiresAtMs);
    const secret = create(PlainSecretSchema, {
      value: accessToken,
      refreshToken,
      clientSecret,
      ...(expiresAt && { expiresAt }),
    });
    const { workspaceId, vaultId, credentialId } = state;
    const sealed = await opener.seal({ workspaceId, vaultId, credentialId, use, secret });
    const text = toJsonString(CredentialUseSchema, use);
    return { connectFinished: { credentialId, sealed, use: text, issuer, ...(expiresAt && { expiresAt }) } };
  }

  /** Sealed for this client and this MCP server: one that is shown with another would go to whom that one names (S1). */
  private async clientSecretOf(ask: AskStartConnect): Promise<string> {
    if (ask.clientSecret === "") return "";
    const { use, secret } = await this.deps.opener.open(ask.clientSecret, partOf(ask));
    const { serverUrl, clientId } = use.kind.case === "oauth" ? use.kind.value : {};
    if (serverUrl === ask.serverUrl && clientId === ask.clientId) return secret.clientSecret;
    throw new CredentialRefusal(
      "DESTINATION_DIFFERS",
      "the client's secret is sealed for another client or MCP server than this one",
    );
  }

  private async answered(run: () => Promise<Answer>): Promise<Answer> {
    try {
      return await run();
    } catch (error) {
      if (error instanceof ConnectFailed) {
        const { step, problem, httpStatus, message } = error;
        return { reason: "CONNECT_FAILED", message, connectFailure: { step, problem, httpStatus } };
      }
      if (error instanceof StateRefused) {
        const { problem, message } = error;
        return { reason: "CONNECT_STATE_REFUSED", message, connectFailure: { problem } };
      }
      if (error instanceof CredentialRefusal) return { reason: error.reason, message: error.message };
      this.deps.log.error({ error: messageOf(error) }, "a question about a connect was not answered");
      return { reason: "UNAVAILABLE", message: "the proxy failed; try again" };
    }
  }

  private stateOf(
    ask: AskStartConnect,
    { discovered, scope, client }: { discovered: Discovered; scope: string; client: OauthClient },
  ): ConnectState {
    const { workspaceId, vaultId, credentialId, principal, serverUrl, redirectUri } = ask;
    const { issuer, namesIssuer, tokenEndpoint } = discovered.server;
    const { clientId, clientAuth, clientSecret } = client;
    return {
      ...{ workspaceId, vaultId, credentialId, principal, serverUrl, redirectUri, scope },
      ...{ issuer, namesIssuer, clientId, clientAuth, clientSecret },
      tokenEndpoint: tokenEndpoint.href,
      resource: discovered.resource,
      expiresAtMs: this.deps.clock.nowMs() + LIFE_MS,
      verifier: randomBytes(32).toString("base64url"),
      state: randomBytes(32).toString("base64url"),
    };
  }
}

/** A part of a secret names workspace and vault, and no credential, as which it could be kept. */
function partOf({ workspaceId, vaultId }: AskStartConnect | AskFinishConnect) {
  return { workspaceId, vaultId, credentialId: "" };
}

function authorizationUrl(endpoint: URL, connect: ConnectState): URL {
  const { clientId, redirectUri, verifier, state, scope, resource } = connect;
  const url = new URL(endpoint);
  const query = {
    response_type: "code",
    client_id: clientId,
    redirect_uri: redirectUri,
    state,
    code_challenge: createHash("sha256").update(verifier).digest("base64url"),
    code_challenge_method: "S256",
    resource,
    ...(scope !== "" && { scope }),
    // OpenID gives a refresh token only to whoever was asked.
    ...(scope.split(" ").includes("offline_access") && { prompt: "consent" }),
  };
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  if (url.href.length <= MAX_URL_CHARS) return url;
  throw new ConnectFailed(
    "authorization",
    "too_long",
    "what would have to be asked is too long for a browser",
  );
}

function checkOwner(state: ConnectState, ask: AskFinishConnect, nowMs: number): void {
  const isOwn =
    state.workspaceId === ask.workspaceId &&
    state.vaultId === ask.vaultId &&
    state.principal === ask.principal;
  if (!isOwn) {
    throw new StateRefused("of_another", "this connect was begun by another caller, or for another vault");
  }
  if (nowMs >= state.expiresAtMs)
    throw new StateRefused("expired", "this connect was begun more than 10 minutes ago; begin another");
}

/** That the answer is the one to this request, and of the authorization server that was asked (RFC 9207). */
function checkAnswer(state: ConnectState, { state: said, iss, error }: AskFinishConnect): void {
  const refuse = (problem: string, message: string) => new ConnectFailed("authorization", problem, message);
  if (said !== state.state)
    throw refuse("state_differs", "the answer is to another request than this connect's; it is not used");
  const { host } = new URL(state.issuer);
  if (iss !== "" && iss !== state.issuer)
    throw refuse(
      "issuer_differs",
      `the answer is of another authorization server than ${host}; it is not used`,
    );
  if (iss === "" && state.namesIssuer)
    throw refuse("issuer_missing", `the answer does not name ${host}, which names itself in its answers`);
  if (error === "") return;
  const problem = REFUSALS.has(error) ? error : "refused";
  throw refuse(problem, `${host} did not grant access: ${problem}`);
}
