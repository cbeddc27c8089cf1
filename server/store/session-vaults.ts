/**
 * A vault that is one session's own, or one deployment's: it holds tokens that were given with its repositories, and ends with
 * it. Sessions of a deployment use the deployment's where it is.
 */
import type { CredentialUse } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { AuditInput } from "./audit.ts";
import type { SealedText } from "./credentials.ts";

/** Sealed for this vault and this id. */
export interface OwnCredential {
  readonly credentialId: string;
  readonly use: CredentialUse;
  /** As kit/vault/destination.ts makes it. */
  readonly destination: string;
  readonly sealed: SealedText;
}

export interface OwnVault {
  readonly vaultId: string;
  readonly credentials: readonly OwnCredential[];
  /** Who gave them, for the audit log. */
  readonly actor: AuditInput["actor"];
}

/** What a token has to be sealed for. */
export interface OwnVaultPlace {
  /** Undefined for a session that has no vault of its own yet. */
  readonly vaultId: string | undefined;
  /** Of the token that is there now. */
  readonly credentialId: string | undefined;
}
