/** What existing clients say of a credential (pure). Throws INVALID_FIELD with the path in their words, never with a value. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { invalidField } from "../../../../kit/errors.ts";
import {
  type CredentialUse,
  CredentialUseSchema,
  type PlainSecretSchema,
} from "../../../../proto/gen/tendon/v1/vault_service_pb.js";
import type { Fields } from "../fields.ts";

const TYPES = ["static_bearer", "mcp_oauth", "environment_variable", "tendon_header", "tendon_git"] as const;
const CLIENT_AUTH = ["none", "client_secret_basic", "client_secret_post"] as const;

type AuthType = (typeof TYPES)[number];
type Secret = Extract<MessageInitShape<typeof PlainSecretSchema>, { $typeName?: never }>;

export interface CredentialInput {
  readonly use: CredentialUse;
  readonly secret: Secret;
}

/** Of a creation. */
export function newCredential(auth: Fields): CredentialInput {
  const type = auth.word("type", TYPES);
  if (type === undefined) throw invalidField(auth.at("type"), "is required");
  const secret = secretOf(type, auth);
  if (!secret.value) throw invalidField(auth.at(SECRET_FIELDS[type]), "is required");
  return { use: useOf(type, auth), secret };
}

const SECRET_FIELDS: Readonly<Record<AuthType, string>> = {
  static_bearer: "token",
  mcp_oauth: "access_token",
  environment_variable: "secret_value",
  tendon_header: "value",
  tendon_git: "token",
};

/** Parts of a secret that are said; the others are empty. */
export function secretOf(type: AuthType, auth: Fields): Secret {
  const refresh = auth.object("refresh");
  const expiry = auth.text("expires_at");
  const expiresAtMs = expiry === undefined ? undefined : Date.parse(expiry);
  if (Number.isNaN(expiresAtMs)) throw invalidField(auth.at("expires_at"), "must be a time");
  return {
    value: auth.text(SECRET_FIELDS[type]) ?? "",
    refreshToken: refresh?.text("refresh_token") ?? "",
    clientSecret: refresh?.object("token_endpoint_auth")?.text("client_secret") ?? "",
    userName: type === "tendon_git" ? (auth.text("user_name") ?? "") : "",
    ...(expiresAtMs !== undefined && { expiresAt: timestampFromMs(expiresAtMs) }),
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

function variableOf(auth: Fields) {
  const location = auth.object("injection_location");
  return {
    name: auth.requiredText("secret_name"),
    allowedHosts: hostsOf(auth.requiredObject("networking")),
    inHeaders: location?.flag("header") ?? true,
    inBody: location?.flag("body") ?? false,
  };
}

/** A secret that may go anywhere is none. */
function hostsOf(networking: Fields): string[] {
  const type = networking.word("type", ["limited", "unrestricted"]);
  if (type === "unrestricted")
    throw invalidField(networking.at("type"), "must be limited: a secret is sent to named hosts alone");
  return [...(networking.texts("allowed_hosts") ?? [])];
}

/** The use after an update, which may change what is no address of an OAuth credential and all of a variable's. */
export function changedUse(before: CredentialUse, type: AuthType, auth: Fields): CredentialUse | undefined {
  const { kind } = before;
  if (type === "mcp_oauth" && kind.case === "oauth") {
    const scope = auth.object("refresh");
    if (scope?.has("scope") !== true) return undefined;
    return use({ case: "oauth", value: { ...kind.value, scope: scope.text("scope") ?? "" } });
  }
  if (type !== "environment_variable" || kind.case !== "environmentVariable") return undefined;
  const networking = auth.object("networking");
  const location = auth.object("injection_location");
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
  return own;
}

const OWN_TYPES: Readonly<Record<string, AuthType>> = {
  staticBearer: "static_bearer",
  oauth: "mcp_oauth",
  environmentVariable: "environment_variable",
  header: "tendon_header",
  git: "tendon_git",
};
