/** Why the proxy does not use a credential. No message holds anything of a secret. */

/** In the audit log in lower case. */
export type CredentialRefusalReason =
  /** Sealed to a key that this proxy does not have. */
  | "KEY_UNKNOWN"
  /** Not what it was when it was sealed, or never sealed well. */
  | "SEAL_BROKEN"
  /** Sealed for another credential, vault or workspace than the one it was found under. */
  | "SEAL_OF_ANOTHER"
  /** Sealed for another destination than the one it is wanted for. */
  | "DESTINATION_DIFFERS"
  /** A new destination needs the secret again in this installation. */
  | "DESTINATION_FIXED"
  | "INVALID_FIELD"
  /** The access token is over and there is no new one. */
  | "TOKEN_EXPIRED"
  /** Uses cannot be written to the audit log. */
  | "AUDIT_UNAVAILABLE";

export class CredentialRefusal extends Error {
  override readonly name = "CredentialRefusal";
  readonly reason: CredentialRefusalReason;
  /** Of a token endpoint: its error code. */
  readonly problem: string;

  constructor(reason: CredentialRefusalReason, message: string, problem = "") {
    super(message);
    this.reason = reason;
    this.problem = problem;
  }
}
