/** What the other areas tell the part that knows hands about files of sessions. Nothing of it rejects. */
export interface HandFiles {
  /** Resolves when the session's hands have what it was given, or a few seconds later: then they have it before their next call. */
  uploadsChanged(sessionId: string): Promise<void>;
  /** The session came to rest: what its hands left as output is taken in, beside. */
  rested(sessionId: string): void;
}
