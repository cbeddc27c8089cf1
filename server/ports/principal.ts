/** Who is calling. Interceptors find it out once a call; areas read it from the call's context. */
import { TendonError } from "../../kit/errors.ts";
import { createContextKey, type RpcContext } from "../../kit/rpc/context.ts";

export type Principal =
  /** Without a workspace: the whole installation. */
  | { readonly kind: "admin"; readonly keyId: string; readonly workspaceId: string | undefined }
  | { readonly kind: "client"; readonly keyId: string; readonly workspaceId: string }
  | { readonly kind: "harness"; readonly keyId: string; readonly workspaceId: string | undefined }
  | { readonly kind: "proxy"; readonly keyId: string; readonly workspaceId: string | undefined }
  | { readonly kind: "peer"; readonly keyId: string }
  | {
      readonly kind: "hand_agent";
      readonly handAgentId: string;
      readonly workspaceId: string;
      readonly pool: string;
    }
  | {
      readonly kind: "worker";
      readonly keyId: string;
      readonly workspaceId: string;
      readonly environmentId: string;
    }
  | {
      readonly kind: "session";
      readonly sessionId: string;
      readonly workspaceId: string;
      readonly epoch: bigint;
    }
  /** A worker that was given an item of work, by the item's token. */
  | {
      readonly kind: "work_item";
      readonly workId: string;
      /** The item's how-manieth holder it is, or was. */
      readonly claim: number;
      /** Somebody else was given the item since, or may be. */
      readonly isLost: boolean;
      readonly sessionId: string;
      readonly workspaceId: string;
      readonly environmentId: string;
    }
  /** Shows no credential; may only enrol, ask for health and read the contract. */
  | { readonly kind: "anonymous" };

export type PrincipalKind = Principal["kind"];

export const principalKey = createContextKey<Principal>("principal");

export function principalOf(context: RpcContext): Principal {
  return context.get(principalKey) ?? { kind: "anonymous" };
}

/**
 * Whether the caller may see what belongs to this workspace. Those who may not are told NOT_FOUND, as for an id that
 * does not exist.
 */
export function maySee(principal: Principal, workspaceId: string): boolean {
  if (principal.kind === "anonymous") return false;
  if (principal.kind === "peer") return true;
  return principal.workspaceId === undefined || principal.workspaceId === workspaceId;
}

/** The workspace that lists are read in; undefined for a caller who sees the whole installation. */
export function scopeOf(principal: Principal): string | undefined {
  return "workspaceId" in principal ? principal.workspaceId : undefined;
}

/** "admin apikey_…": how the audit log names the caller. */
export function actorOf(principal: Principal): string {
  if (principal.kind === "anonymous") return "anonymous";
  if (principal.kind === "hand_agent") return `hand_agent ${principal.handAgentId}`;
  if (principal.kind === "session") return `session ${principal.sessionId}`;
  if (principal.kind === "work_item") return `work_item ${principal.workId}`;
  return `${principal.kind} ${principal.keyId}`;
}

/** The workspace that a creation goes to: the caller's own, or for an installation-wide caller the default one. */
export function workspaceOf(principal: Principal, defaultWorkspaceId: string): string {
  if (principal.kind === "anonymous" || principal.kind === "peer") {
    throw new TendonError("ROLE_NOT_ALLOWED", `${principal.kind} has no workspace`);
  }
  return principal.workspaceId ?? defaultWorkspaceId;
}

/** What keys of environments, and tokens of items of work, begin with. */
export const ENVIRONMENT_KEY_PREFIX = "tk_environment_";
export const WORK_TOKEN_PREFIX = "tk_work_";
