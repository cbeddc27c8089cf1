/** A credential as existing clients know it: its use, and nothing of its secret (pure). */
import {
  type Credential,
  CredentialValidity,
  type EnvironmentVariableUse,
  type OauthUse,
  type ValidateCredentialResponse,
} from "../../../../proto/gen/tendon/v1/vault_service_pb.js";
import { timeJson } from "../time-json.ts";

export function credentialJson(credential: Credential) {
  const { id, vaultId, displayName, metadata, createdAt, updatedAt, archivedAt } = credential;
  return {
    type: "vault_credential",
    id,
    vault_id: vaultId,
    display_name: displayName || null,
    auth: authJson(credential),
    metadata,
    created_at: timeJson(createdAt),
    updated_at: timeJson(updatedAt),
    archived_at: timeJson(archivedAt),
  };
}

/** The last two kinds are our own. */
function authJson({ use, expiresAt }: Credential) {
  const kind = use!.kind;
  switch (kind.case) {
    case "staticBearer":
      return { type: "static_bearer", mcp_server_url: kind.value.serverUrl };
    case "oauth":
      return {
        type: "mcp_oauth",
        mcp_server_url: kind.value.serverUrl,
        expires_at: timeJson(expiresAt),
        ...(kind.value.tokenEndpoint !== "" && { refresh: refreshJson(kind.value) }),
      };
    case "environmentVariable":
      return variableJson(kind.value);
    case "header":
      return {
        type: "tendon_header",
        mcp_server_url: kind.value.serverUrl,
        header_name: kind.value.headerName,
      };
    case "git":
      return { type: "tendon_git", url: kind.value.url, push_branches: kind.value.pushBranches };
    case undefined:
      return { type: "unknown" };
  }
}

function refreshJson({ clientId, tokenEndpoint, clientAuth, scope, resource }: OauthUse) {
  return {
    client_id: clientId,
    token_endpoint: tokenEndpoint,
    token_endpoint_auth: { type: clientAuth || "none" },
    scope: scope || null,
    resource: resource || null,
  };
}

function variableJson({ name, allowedHosts, inHeaders, inBody }: EnvironmentVariableUse) {
  return {
    type: "environment_variable",
    secret_name: name,
    networking: { type: "limited", allowed_hosts: allowedHosts },
    injection_location: { header: inHeaders, body: inBody },
  };
}

/** What failed of it: the try where it was made, and the refresh. */
export function validationJson(
  { id, vaultId }: Credential,
  result: ValidateCredentialResponse,
  nowMs: number,
) {
  const isValid = result.validity === CredentialValidity.VALID;
  return {
    type: "vault_credential_validation",
    credential_id: id,
    vault_id: vaultId,
    status: STATUS[result.validity] ?? "unknown",
    has_refresh_token: result.hasRefreshToken,
    mcp_probe:
      result.probed && !isValid
        ? { method: "initialize", http_response: answerJson(result.httpStatus) }
        : null,
    refresh: refreshResultJson(result),
    detail: result.detail,
    validated_at: new Date(nowMs).toISOString(),
  };
}

/** What the far side wrote is not repeated. */
function answerJson(status: number) {
  return status === 0 ? null : { status_code: status, content_type: "", body: "", body_truncated: false };
}

function refreshResultJson({
  refreshStatus: status,
  refreshHttpStatus,
  hasRefreshToken,
  httpStatus,
}: ValidateCredentialResponse) {
  if (status !== "")
    return { status, http_response: status === "failed" ? answerJson(refreshHttpStatus) : null };
  const wasWanted = httpStatus === UNAUTHORIZED && !hasRefreshToken;
  return wasWanted ? { status: "no_refresh_token", http_response: null } : null;
}

const UNAUTHORIZED = 401;

const STATUS: Partial<Record<CredentialValidity, string>> = {
  [CredentialValidity.VALID]: "valid",
  [CredentialValidity.INVALID]: "invalid",
};
