/** What a session's log, and those of the sessions above it, have shown a model of the world outside. */

/** A message of a user, or the result of a custom tool or of a tool of the web. */
export interface ShownText {
  /** Of its event. */
  readonly type: string;
  readonly payload: string;
  /** Payload of the call that it answers; undefined for a message. */
  readonly call: string | undefined;
  readonly cursor: ShownTextCursor;
}

export interface ShownTextCursor {
  readonly sessionId: string;
  readonly position: number;
}

export interface ShownTextStore {
  /**
   * Those of the session and of the sessions that it was made by whose payload holds the word, in any case; a few at a time,
   * `after` the last one before. What is larger than 1 MiB is left out.
   */
  page(request: {
    readonly sessionId: string;
    readonly word: string;
    readonly after: ShownTextCursor | undefined;
  }): Promise<ShownText[]>;
}
