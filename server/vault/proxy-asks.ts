/** What the server asks proxies about credentials. Only they can look inside. */
import { fromJsonString, type MessageInitShape, toJsonString } from "@bufbuild/protobuf";
import { TendonError } from "../../kit/errors.ts";
import { readSealed } from "../../kit/vault/sealed-content.ts";
import type {
  ConnectFinished,
  ConnectStarted,
  ProxyAnswer,
} from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import {
  type CredentialUse,
  CredentialUseSchema,
  ValidateCredentialResponseSchema,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { ProxyAsk, ProxyDirectory } from "../ports/proxy-directory.ts";
import type { SealedText, StoredCredential } from "../store/credentials.ts";

/** Sealing anew is work of milliseconds. */
const RESEAL_WITHIN_MS = 10_000;
/** A refresh that waits for another proxy's, and the try itself. */
const VALIDATE_WITHIN_MS = 60_000;

/** Six requests at most, each with a bound of its own. */
const START_CONNECT_WITHIN_MS = 50_000;
/** One request to a token endpoint. */
const FINISH_CONNECT_WITHIN_MS = 25_000;

export interface ResealOptions {
  /** Undefined keeps the sealed one. */
  readonly use?: CredentialUse | undefined;
  /** Parts of the secret, sealed like the whole; undefined for none. */
  readonly secret?: SealedText | undefined;
  readonly signal?: AbortSignal | undefined;
}

/**
 * The same credential, sealed by a proxy to its newest key. NOT_CONFIGURED without a proxy; DESTINATION_FIXED, SEAL_REFUSED or
 * INVALID_FIELD when the proxy refuses; UNAVAILABLE, DEADLINE_EXCEEDED.
 */
export async function reseal(
  proxies: Pick<ProxyDirectory, "ask">,
  stored: StoredCredential & { readonly sealed: string },
  { use, secret, signal }: ResealOptions,
): Promise<SealedText> {
  const value = {
    ...namesOf(stored),
    sealed: stored.sealed,
    use: use === undefined ? "" : toJsonString(CredentialUseSchema, use),
    secret: secret?.text ?? "",
    webhookEndpointId: "",
  };
  const answer = await proxies.ask({ case: "reseal", value }, { timeoutMs: RESEAL_WITHIN_MS, signal });
  throwRefusal(answer, stored.credential.id);
  return { text: answer.resealed, keyId: readSealed(answer.resealed).keyId };
}

/** As `reseal`. */
export async function validate(
  proxies: Pick<ProxyDirectory, "ask">,
  stored: StoredCredential & { readonly sealed: string },
  signal: AbortSignal,
): Promise<MessageInitShape<typeof ValidateCredentialResponseSchema>> {
  const value = { ...namesOf(stored), sealed: stored.sealed, version: BigInt(stored.version) };
  const answer = await proxies.ask({ case: "validate", value }, { timeoutMs: VALIDATE_WITHIN_MS, signal });
  throwRefusal(answer, stored.credential.id);
  return fromJsonString(ValidateCredentialResponseSchema, answer.validation, { ignoreUnknownFields: true });
}

type ValueOf<C extends ProxyAsk["case"]> = Extract<ProxyAsk, { case: C }>["value"];

/** CONNECT_FAILED, INVALID_FIELD, NOT_CONFIGURED without a proxy, UNAVAILABLE, DEADLINE_EXCEEDED. */
export async function startConnect(
  proxies: Pick<ProxyDirectory, "ask">,
  value: ValueOf<"startConnect">,
  signal: AbortSignal,
): Promise<ConnectStarted> {
  const options = { timeoutMs: START_CONNECT_WITHIN_MS, signal };
  const answer = await proxies.ask({ case: "startConnect", value }, options);
  throwConnectFailure(answer);
  return wanted(answer.connectStarted);
}

/** As `startConnect`, and CONNECT_STATE_REFUSED. */
export async function finishConnect(
  proxies: Pick<ProxyDirectory, "ask">,
  value: ValueOf<"finishConnect">,
  signal: AbortSignal,
): Promise<ConnectFinished> {
  const options = { timeoutMs: FINISH_CONNECT_WITHIN_MS, signal };
  const answer = await proxies.ask({ case: "finishConnect", value }, options);
  throwConnectFailure(answer);
  return wanted(answer.connectFinished);
}

function wanted<T>(part: T | undefined): T {
  if (part !== undefined) return part;
  throw new TendonError("UNAVAILABLE", "the proxy gave no answer to what it was asked", { part: "proxy" });
}

const CONNECT_REFUSALS = ["CONNECT_FAILED", "CONNECT_STATE_REFUSED", "INVALID_FIELD", "UNAVAILABLE"] as const;

function throwConnectFailure({ reason, message, connectFailure }: ProxyAnswer): void {
  if (reason === "") return;
  const known = CONNECT_REFUSALS.find((one) => one === reason);
  const { step = "", problem = "", httpStatus = 0 } = connectFailure ?? {};
  throw new TendonError(known ?? "SEAL_REFUSED", message, {
    part: known === "CONNECT_FAILED" ? "upstream" : "proxy",
    ...(known === undefined && { refusal: reason.toLowerCase() }),
    ...(step !== "" && { step }),
    ...(problem !== "" && { problem }),
    ...(httpStatus !== 0 && { http_status: String(httpStatus) }),
  });
}

function namesOf({ credential, workspaceId }: StoredCredential) {
  return { credentialId: credential.id, vaultId: credential.vaultId, workspaceId };
}

const REFUSALS = ["DESTINATION_FIXED", "INVALID_FIELD", "NOT_CONFIGURED", "UNAVAILABLE"] as const;

function throwRefusal({ reason, message }: ProxyAnswer, id: string): void {
  if (reason === "") return;
  const known = REFUSALS.find((one) => one === reason);
  throw new TendonError(known ?? "SEAL_REFUSED", message, {
    id,
    part: "proxy",
    refusal: reason.toLowerCase(),
  });
}
