/** What existing clients say of a credential (pure). Throws INVALID_FIELD with the path in their words, never with a value. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { invalidField } from "../../../../kit/errors.ts";
import {
  type CredentialUse,
  CredentialUseSchema,
  type PlainSecretSchema,
} from "../../../../proto/gen/tendon/v1/vault_service_pb.js";
import type { Fields } from "../fields.ts";
import { timeFrom } from "../time-json.ts";

const TYPES = ["static_bearer", "mcp_oauth", "environment_variable", "tendon_header", "tendon_git"] as const;
const CLIENT_AUTH = ["none", "client_secret_basic", "client_secret_post"] as const;

type AuthType = (typeof TYPES)[number];
type Secret = Extract<MessageInitShape<typeof PlainSecretSchema>, { $typeName?: never }>;

export interface CredentialInput {
  readonly use: CredentialUse;
  readonly secret: Secret;
}

/** Of a creation. */
export function newCredential(auth: Fields, nowMs: number): CredentialInput {
  const type = auth.word("type", TYPES);
  if (type === undefined) throw invalidField(auth.at("type"), "is required");
  refuseStrays(type, auth, NEW_FIELDS[type]);
  const secret = secretOf(type, auth, nowMs);
  if (!secret.value) throw invalidField(auth.at(SECRET_FIELDS[type]), "is required");
  auth.object("refresh")?.requiredText("refresh_token");
  return { use: useOf(type, auth), secret };
}

const NEW_FIELDS: Readonly<Record<AuthType, readonly string[]>> = {
  static_bearer: ["token", "mcp_server_url"],
  mcp_oauth: ["access_token", "mcp_server_url", "expires_at", "refresh"],
  environment_variable: ["secret_name", "secret_value", "networking", "injection_location"],
  tendon_header: ["value", "mcp_server_url", "header_name"],
  tendon_git: ["token", "url", "push_branches", "user_name"],
};

/** What stays as it was made is not among them. */
const CHANGED_FIELDS: Readonly<Record<AuthType, readonly string[]>> = {
  static_bearer: ["token"],
  mcp_oauth: ["access_token", "expires_at", "refresh"],
  environment_variable: ["secret_value", "networking", "injection_location"],
  tendon_header: ["value"],
  tendon_git: ["token", "user_name"],
};

function refuseStrays(type: AuthType, auth: Fields, own: readonly string[]): void {
  auth.only("type", ...own);
  const isNew = own === NEW_FIELDS[type];
  const refresh = auth.object("refresh");
  refresh?.only(
    ...["refresh_token", "scope", "token_endpoint_auth"],
    ...(isNew ? ["client_id", "token_endpoint", "resource"] : []),
  );
  const proof = refresh?.object("token_endpoint_auth");
  proof?.only("type", "client_secret");
  proof?.word("type", CLIENT_AUTH);
  auth.object("injection_location")?.only("header", "body");
}

const SECRET_FIELDS: Readonly<Record<AuthType, string>> = {
  static_bearer: "token",
  mcp_oauth: "access_token",
  environment_variable: "secret_value",
  tendon_header: "value",
  tendon_git: "token",
};

/** Parts of a secret that are said; the others are empty. */
export function secretOf(type: AuthType, auth: Fields, nowMs: number): Secret {
  const refresh = auth.object("refresh");
  const expiry = auth.text("expires_at");
  const expiresAt = expiry === undefined ? undefined : timeFrom(expiry, auth.at("expires_at"));
  if (expiresAt !== undefined && expiresAt.getTime() <= nowMs)
    throw invalidField(auth.at("expires_at"), "must lie in the future");
  return {
    value: auth.text(SECRET_FIELDS[type]) ?? "",
    refreshToken: refresh?.text("refresh_token") ?? "",
    clientSecret: refresh?.object("token_endpoint_auth")?.text("client_secret") ?? "",
    userName: type === "tendon_git" ? (auth.text("user_name") ?? "") : "",
    ...(expiresAt && { expiresAt: timestampFromDate(expiresAt) }),
  };
}

function useOf(type: AuthType, auth: Fields): CredentialUse {
  switch (type) {
    case "static_bearer":
      return use({ case: "staticBearer", value: { serverUrl: auth.requiredText("mcp_server_url") } });
    case "tendon_header": {
      const value = {
        serverUrl: auth.requiredText("mcp_server_url"),
        headerName: auth.requiredText("header_name"),
      };
      return use({ case: "header", value });
    }
    case "tendon_git": {
      const pushBranches = [...(auth.texts("push_branches") ?? [])];
      return use({ case: "git", value: { url: auth.requiredText("url"), pushBranches } });
    }
    case "mcp_oauth":
      return use({ case: "oauth", value: oauthOf(auth) });
    case "environment_variable":
      return use({ case: "environmentVariable", value: variableOf(auth) });
  }
}

type UseInit = Extract<MessageInitShape<typeof CredentialUseSchema>, { $typeName?: never }>;

function use(kind: NonNullable<UseInit["kind"]>): CredentialUse {
  return create(CredentialUseSchema, { kind });
}

function oauthOf(auth: Fields) {
  const serverUrl = auth.requiredText("mcp_server_url");
  const refresh = auth.object("refresh");
  if (refresh === undefined) return { serverUrl };
  return {
    serverUrl,
    clientId: refresh.requiredText("client_id"),
    tokenEndpoint: refresh.requiredText("token_endpoint"),
    clientAuth: refresh.object("token_endpoint_auth")?.word("type", CLIENT_AUTH) ?? "none",
    scope: refresh.text("scope") ?? "",
    resource: refresh.text("resource") ?? "",
  };
}

/** Where no place is named, both are meant; where one is, the other is not. */
function variableOf(auth: Fields) {
  const location = locationOf(auth);
  return {
    name: auth.requiredText("secret_name"),
    allowedHosts: hostsOf(auth.requiredObject("networking")),
    inHeaders: location === undefined ? true : (location.flag("header") ?? false),
    inBody: location === undefined ? true : (location.flag("body") ?? false),
  };
}

/** Null is neither yes nor no. */
function locationOf(auth: Fields): Fields | undefined {
  const location = auth.object("injection_location");
  for (const [fields, name] of [
    [auth, "injection_location"],
    [location, "header"],
    [location, "body"],
  ] as const) {
    if (fields?.value[name] === null) throw invalidField(fields.at(name), "must not be null");
  }
  return location;
}

/** A secret that may go anywhere is none. */
function hostsOf(networking: Fields): string[] {
  const type = networking.word("type", ["limited", "unrestricted"]);
  if (type === undefined) throw invalidField(networking.at("type"), "is required");
  networking.only("type", ...(type === "limited" ? ["allowed_hosts"] : []));
  if (type === "unrestricted")
    throw invalidField(networking.at("type"), "must be limited: a secret is sent to named hosts alone");
  return [...(networking.texts("allowed_hosts") ?? [])];
}

/** The use after an update, which may change what is no address of an OAuth credential and all of a variable's. */
export function changedUse(before: CredentialUse, type: AuthType, auth: Fields): CredentialUse | undefined {
  const { kind } = before;
  if (type === "mcp_oauth" && kind.case === "oauth") {
    const scope = auth.object("refresh")?.text("scope");
    return scope === undefined ? undefined : use({ case: "oauth", value: { ...kind.value, scope } });
  }
  if (type !== "environment_variable" || kind.case !== "environmentVariable") return undefined;
  const networking = auth.object("networking");
  const location = locationOf(auth);
  if (networking === undefined && location === undefined) return undefined;
  const { name, allowedHosts, inHeaders, inBody } = kind.value;
  const value = {
    name,
    allowedHosts: networking === undefined ? allowedHosts : hostsOf(networking),
    inHeaders: location?.flag("header") ?? inHeaders,
    inBody: location?.flag("body") ?? inBody,
  };
  return use({ case: "environmentVariable", value });
}

/** Of an update; must be the credential's own. */
export function typeOf(before: CredentialUse, auth: Fields): AuthType {
  const own = OWN_TYPES[before.kind.case ?? ""];
  const said = auth.word("type", TYPES);
  if (own === undefined || said !== own)
    throw invalidField(auth.at("type"), `must be ${own}: a credential keeps its type`);
  refuseStrays(own, auth, CHANGED_FIELDS[own]);
  return own;
}

const OWN_TYPES: Readonly<Record<string, AuthType>> = {
  staticBearer: "static_bearer",
  oauth: "mcp_oauth",
  environmentVariable: "environment_variable",
  header: "tendon_header",
  git: "tendon_git",
};
