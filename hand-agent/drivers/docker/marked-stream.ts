/**
 * Tells marks from data in what a lane prints: a byte 1, a token, a space, words, a byte 1. Data is passed on as it
 * comes; only what may still become a mark waits for its rest.
 */

const MARK = 1;
/** Words of a mark are numbers and letters. */
const MAX_WORDS_BYTES = 64;

export interface MarkedStreamOptions {
  /** The tokens that are listened for; more may be added and taken away. */
  readonly tokens: Set<string>;
  readonly onData: (chunk: Buffer) => void;
  readonly onMark: (token: string, words: readonly string[]) => void;
}

type Match = { readonly token: string; readonly words: string; readonly end: number } | "none" | "partial";

export class MarkedStream {
  private readonly options: MarkedStreamOptions;
  private rest: Buffer | undefined;

  constructor(options: MarkedStreamOptions) {
    this.options = options;
  }

  push(chunk: Buffer): void {
    const bytes = this.rest === undefined ? chunk : Buffer.concat([this.rest, chunk]);
    this.rest = undefined;
    let done = 0;
    for (let at = bytes.indexOf(MARK); at >= 0; ) {
      const match = this.match(bytes, at);
      if (match === "none") {
        at = bytes.indexOf(MARK, at + 1);
        continue;
      }
      this.pass(bytes.subarray(done, at));
      if (match === "partial") {
        this.rest = bytes.subarray(at);
        return;
      }
      this.options.onMark(match.token, match.words.split(" "));
      done = match.end;
      at = bytes.indexOf(MARK, done);
    }
    this.pass(bytes.subarray(done));
  }

  /** Nothing comes any more: what looked like the beginning of a mark is data. */
  end(): void {
    const { rest } = this;
    this.rest = undefined;
    if (rest !== undefined) this.pass(rest);
  }

  private pass(chunk: Buffer): void {
    if (chunk.length > 0) this.options.onData(chunk);
  }

  private match(bytes: Buffer, at: number): Match {
    let isPartial = false;
    for (const token of this.options.tokens) {
      const wanted = `${token} `;
      const seen = bytes.toString("latin1", at + 1, at + 1 + wanted.length);
      if (!wanted.startsWith(seen)) continue;
      const from = at + 1 + wanted.length;
      const end = seen.length < wanted.length ? -1 : bytes.indexOf(MARK, from);
      if (end >= 0 && end - from <= MAX_WORDS_BYTES)
        return { token, words: bytes.toString("latin1", from, end), end: end + 1 };
      if (end < 0 && bytes.length - from <= MAX_WORDS_BYTES) isPartial = true;
    }
    return isPartial ? "partial" : "none";
  }
}
