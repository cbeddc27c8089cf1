/** Which workspace a call is for, where the caller's credential is for more than one. */
import { notFound, TendonError } from "../../kit/errors.ts";
import type { Principal } from "../ports/principal.ts";
import type { WorkspaceStore } from "../store/workspaces.ts";

/** In the headers of a call; existing clients of the HTTP API send it under a name of their own. */
export const WORKSPACE_HEADER = "tendon-workspace-id";

/**
 * The caller as one of the workspace that the call names. An installation-wide admin may name any that lives; a credential of
 * a workspace is for that alone. ROLE_NOT_ALLOWED, NOT_FOUND.
 */
export async function inChosenWorkspace(
  workspaces: Pick<WorkspaceStore, "find">,
  principal: Principal,
  chosen: string | undefined,
): Promise<Principal> {
  if (chosen === undefined || chosen === "" || !("workspaceId" in principal)) return principal;
  if (principal.workspaceId === chosen) return principal;
  if (principal.kind !== "admin" || principal.workspaceId !== undefined)
    throw new TendonError("ROLE_NOT_ALLOWED", "the credential is not one of the workspace that is named");
  const workspace = chosen.includes("\0") ? undefined : await workspaces.find(chosen);
  if (workspace === undefined || workspace.archivedAt !== undefined) throw notFound("workspace", chosen);
  return { ...principal, workspaceId: chosen };
}
