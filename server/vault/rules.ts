/** What a credential may be, beyond what the proto's own rules say. No error repeats a part of a secret. */
import { create } from "@bufbuild/protobuf";
import { timestampMs } from "@bufbuild/protobuf/wkt";
import { invalidField } from "../../kit/errors.ts";
import { refuseNul } from "../../kit/nul.ts";
import { destinationOf, normaliseServerUrl } from "../../kit/vault/destination.ts";
import { readSealed, SealError } from "../../kit/vault/sealed-content.ts";
import {
  type CredentialUse,
  CredentialUseSchema,
  type EnvironmentVariableUse,
  type OauthUse,
  type PlainSecret,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";

/** Headers that belong to the connection or to MCP itself. */
const RESERVED_HEADERS = new Set([
  "connection",
  "content-encoding",
  "content-length",
  "content-type",
  "accept",
  "expect",
  "host",
  "keep-alive",
  "last-event-id",
  "mcp-protocol-version",
  "mcp-session-id",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);
export const CLIENT_AUTH = ["none", "client_secret_basic", "client_secret_post"];

const HOST = /^(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*$/;

/** The use as it is stored and sealed, and what it is found by. Throws INVALID_FIELD. */
export function checkUse(use: CredentialUse | undefined): { use: CredentialUse; destination: string } {
  const checked = create(CredentialUseSchema, use);
  refuseNul(checked, "use");
  const { kind } = checked;
  switch (kind.case) {
    case "header":
      if (RESERVED_HEADERS.has(kind.value.headerName.toLowerCase()))
        throw invalidField("use.header.header_name", "is a header that requests need for themselves");
      break;
    case "oauth":
      checkOauth(kind.value);
      break;
    case "environmentVariable":
      checkVariable(kind.value);
      break;
  }
  const destination = destinationOf(checked);
  if (destination !== undefined) return { use: checked, destination };
  const field = kind.case === "git" ? "use.git.url" : `use.${snake(kind.case ?? "kind")}.server_url`;
  const problem =
    kind.case === "git"
      ? "https://host or https://host/owner/repository"
      : "http(s)://… or hand-agent://<pool>/<host>/…";
  throw invalidField(field, `must be ${problem}, without user, password, fragment and spaces`);
}

function checkOauth(oauth: OauthUse): void {
  const { tokenEndpoint, clientAuth, clientId } = oauth;
  if (tokenEndpoint === "") {
    if (clientAuth !== "" || clientId !== "")
      throw invalidField("use.oauth.token_endpoint", "is needed where a client is named");
    return;
  }
  const url = normaliseServerUrl(tokenEndpoint);
  if (url === undefined || url.startsWith("hand-agent:"))
    throw invalidField(
      "use.oauth.token_endpoint",
      "must be http(s)://…, without user, password and fragment",
    );
  if (clientAuth === "") oauth.clientAuth = "none";
  else if (!CLIENT_AUTH.includes(clientAuth))
    throw invalidField("use.oauth.client_auth", `must be one of ${CLIENT_AUTH.join(", ")}`);
  if (clientId === "") throw invalidField("use.oauth.client_id", "is needed to refresh tokens");
}

function checkVariable(variable: EnvironmentVariableUse): void {
  if (!variable.inHeaders && !variable.inBody)
    throw invalidField(
      "use.environment_variable.in_headers",
      "it must be put into headers, into bodies, or both",
    );
  variable.allowedHosts = variable.allowedHosts.map((host, index) => {
    const name = host.toLowerCase().replace(/\.$/, "");
    if (name.length <= 253 && HOST.test(name)) return name;
    throw invalidField(
      `use.environment_variable.allowed_hosts[${index}]`,
      "must be a host name, an IPv4 address, or *.example.com for all below; without a port: all ports are meant",
    );
  });
}

/** Whether the secret has what its use needs. With `isPart` only what must not be there is refused. Throws INVALID_FIELD. */
export function checkSecret({ kind }: CredentialUse, secret: PlainSecret, isPart: boolean): void {
  const path = "secret.plain";
  const refuse = (field: string, problem: string) => invalidField(`${path}.${field}`, problem);
  const { value, refreshToken, clientSecret, userName, expiresAt } = secret;
  for (const [field, text] of Object.entries({
    value,
    refresh_token: refreshToken,
    client_secret: clientSecret,
  })) {
    if (!isPrintable(text, kind.case === "environmentVariable"))
      throw refuse(field, "holds a character that cannot be sent: control characters, or more than ASCII");
  }
  if (/[\p{Cc}:]/u.test(userName)) throw refuse("user_name", "must hold no colon and no control character");
  if (kind.case !== "git" && userName !== "") throw refuse("user_name", "belongs to git credentials alone");
  if (kind.case !== "oauth") {
    if (refreshToken !== "") throw refuse("refresh_token", "belongs to OAuth credentials alone");
    if (clientSecret !== "") throw refuse("client_secret", "belongs to OAuth credentials alone");
    if (expiresAt !== undefined) throw refuse("expires_at", "belongs to OAuth credentials alone");
  } else checkOauthSecret(kind.value, secret, refuse);
  if (isPart) {
    if (!value && !refreshToken && !clientSecret && !userName && !expiresAt)
      throw invalidField(path, "holds nothing");
  } else if (value === "" && (kind.case !== "oauth" || refreshToken === "")) {
    throw refuse("value", "must not be empty");
  } else if (
    kind.case === "oauth" &&
    kind.value.clientAuth.startsWith("client_secret_") &&
    clientSecret === ""
  ) {
    throw refuse("client_secret", `is needed for ${kind.value.clientAuth}`);
  }
}

function checkOauthSecret(
  use: OauthUse,
  { refreshToken, clientSecret, expiresAt }: PlainSecret,
  refuse: (field: string, problem: string) => Error,
): void {
  if (refreshToken !== "" && use.tokenEndpoint === "")
    throw refuse("refresh_token", "needs a token endpoint");
  if (clientSecret !== "" && !use.clientAuth.startsWith("client_secret_"))
    throw refuse(
      "client_secret",
      "needs a client that proves itself by client_secret_basic or client_secret_post",
    );
  if (expiresAt !== undefined && !(Math.abs(timestampMs(expiresAt)) < 2 ** 52))
    throw refuse("expires_at", "is no time that can be stored");
}

/** What goes into a header must be sent as it is; a variable's value may have tabs and letters of all kinds. */
function isPrintable(text: string, isVariable: boolean): boolean {
  return isVariable ? !/[\0\r\n]/.test(text) : /^[\x20-\x7e]*$/.test(text);
}

/** Structure alone: what is inside only the proxy can judge. Throws INVALID_FIELD. */
export function checkSealed(sealed: string, knownKeys: readonly { readonly keyId: string }[]): string {
  try {
    const { keyId } = readSealed(sealed);
    if (knownKeys.some((key) => key.keyId === keyId)) return keyId;
  } catch (error) {
    if (error instanceof SealError) throw invalidField("secret.sealed", error.message);
    throw error;
  }
  throw invalidField(
    "secret.sealed",
    "is sealed to a key that no proxy has published; ask GetSealingKey for one",
  );
}

function snake(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
