/** What the other areas may ask of the part that knows vaults: secrets are sealed before they are stored (S1). */
import type { CredentialUse, PlainSecret } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { SealedText } from "../store/credentials.ts";

export interface SealedFor {
  readonly workspaceId: string;
  readonly vaultId: string;
  readonly credentialId: string;
}

export interface SecretSealing {
  /** NOT_CONFIGURED while no proxy has published a key; INVALID_FIELD for a secret that is too large. */
  seal(whose: SealedFor, use: CredentialUse, secret: PlainSecret): Promise<SealedText>;
}
