/** How a sealed credential is given to a proxy: by the vault area for any destination, and with calls of MCP servers. */
import type { RpcContext } from "../../kit/rpc/context.ts";
import { hostOf } from "../../kit/vault/destination.ts";
import type { CredentialOpening, StoredCredential } from "../store/credentials.ts";
import { actorOf, principalOf } from "./principal.ts";

/** What is looked for, and how the audit log tells it. */
export function opening(
  sessionId: string,
  epoch: bigint,
  destination: string,
  destinations: readonly string[],
  context: RpcContext,
): CredentialOpening {
  const host = hostOf(destination);
  // A variable is asked for by its name; to which host its value goes is told with its use.
  const detail = { ...(host === "" ? { variable: destination } : { host }), epoch: String(epoch) };
  return { sessionId, destinations, audit: { actor: actorOf(principalOf(context)), detail } };
}

export function resolvedCredential({ credential, workspaceId, sealed = "", version }: StoredCredential) {
  const { id: credentialId, vaultId } = credential;
  return { credentialId, vaultId, workspaceId, sealed, version: BigInt(version) };
}
