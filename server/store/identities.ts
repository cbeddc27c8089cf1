/** Who hand agents are: the public halves of the keys that they sign with. What they offer is in hand-agents.ts. */
import type { AuditInput } from "./audit.ts";

export interface HandAgentIdentity {
  readonly handAgentId: string;
  readonly workspaceId: string;
  readonly pool: string;
  /** Ed25519, 32 bytes. */
  readonly publicKey: Uint8Array;
  /** Also when its workspace was archived. */
  readonly revoked: boolean;
}

export interface IdentityStore {
  findHandAgent(handAgentId: string): Promise<HandAgentIdentity | undefined>;
  /** False when there is no such agent, or when it is not of this workspace. A revoked one stays as it is. */
  revokeHandAgent(handAgentId: string, workspaceId: string | undefined, audit: AuditInput): Promise<boolean>;
}
