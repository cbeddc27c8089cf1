/** Short-lived proof that a brain holds a session. The harness shows it to the proxy, and to the server in the session's name. */

export interface SessionTokenClaims {
  readonly sessionId: string;
  readonly workspaceId: string;
  /** Epoch of the lease that the token was made for. */
  readonly epoch: bigint;
}

export interface IssuedSessionToken {
  readonly token: string;
  /** 15 minutes from its making. */
  readonly expiresAtMs: number;
}

export interface SessionTokens {
  issue(claims: SessionTokenClaims): Promise<IssuedSessionToken>;
  /**
   * Checks a token that any replica signed. Throws UNAUTHENTICATED, or KEY_EXPIRED for one whose time is over. Says
   * nothing about whether the epoch is still the newest: whoever writes checks that.
   */
  verify(token: string): Promise<SessionTokenClaims>;
  /** Public keys of all replicas whose tokens may still be shown: a JWK set as JSON text, the same text for the same keys. */
  publicKeys(): Promise<string>;
}
