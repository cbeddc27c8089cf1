/** Decisions of the admin area: who may make what. */
import { timestampMs } from "@bufbuild/protobuf/wkt";
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import { type CreateApiKeyRequest, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { type Principal, scopeOf } from "../ports/principal.ts";
import type { KeyRole } from "../store/api-keys.ts";

const ROLE_NAMES: Readonly<Partial<Record<Role, KeyRole>>> = {
  [Role.ADMIN]: "admin",
  [Role.CLIENT]: "client",
  [Role.HARNESS]: "harness",
  [Role.PROXY]: "proxy",
  [Role.PEER]: "peer",
};

/** Throws ROLE_NOT_ALLOWED for an admin of one workspace. */
export function requireInstallationWide(principal: Principal, what: string): void {
  if (scopeOf(principal) === undefined) return;
  throw new TendonError("ROLE_NOT_ALLOWED", `only an installation-wide admin may ${what}`);
}

/** The workspace that a request names, else the caller's own. Throws NOT_FOUND for another's: it is not there for the caller. */
export function namedWorkspace(principal: Principal, workspaceId: string): string | undefined {
  const own = scopeOf(principal);
  if (workspaceId === "") return own;
  if (own !== undefined && workspaceId !== own) throw notFound("workspace", workspaceId);
  return workspaceId;
}

export interface KeyPlan {
  readonly role: KeyRole;
  readonly workspaceId: string | undefined;
  readonly expiresAtMs: number | undefined;
}

/** What key a request may have made. A client's belongs to a workspace: the default one unless told otherwise. */
export function planKey(
  request: CreateApiKeyRequest,
  principal: Principal,
  { nowMs, defaultWorkspaceId }: { nowMs: number; defaultWorkspaceId: string },
): KeyPlan {
  const role = ROLE_NAMES[request.role];
  if (role === undefined) throw invalidField("role", "must be one of admin, client, harness, proxy, peer");
  const named = namedWorkspace(principal, request.workspaceId);
  const workspaceId = named ?? (role === "client" ? defaultWorkspaceId : undefined);
  if (role === "peer" && workspaceId !== undefined) {
    requireInstallationWide(principal, "make keys of the role peer");
    throw invalidField("workspace_id", "a key of the role peer belongs to no workspace");
  }
  const expiresAtMs = request.expiresAt === undefined ? undefined : timestampMs(request.expiresAt);
  if (expiresAtMs !== undefined && expiresAtMs <= nowMs) {
    throw invalidField("expires_at", "must lie in the future");
  }
  return { role, workspaceId, expiresAtMs };
}
