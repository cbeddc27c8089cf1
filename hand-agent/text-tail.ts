/**
 * The end of a long text, kept in the pieces that it came in: to put them together again and again would cost a copy of
 * the whole end for every piece, and the garbage of that costs every other call of the agent.
 */
export class TextTail {
  private readonly maxChars: number;
  private pieces: string[] = [];
  private chars = 0;
  private dropped = false;

  /** @param maxChars At least this much is kept; at most as much again as the last piece. */
  constructor(maxChars: number) {
    this.maxChars = maxChars;
  }

  /** Whether there was more than is kept. */
  get isCut(): boolean {
    return this.dropped || this.chars > this.maxChars;
  }

  push(text: string): void {
    if (text === "") return;
    const last = this.pieces.at(-1);
    if (last !== undefined && last.length < JOIN_BELOW_CHARS)
      this.pieces[this.pieces.length - 1] = last + text;
    else this.pieces.push(text);
    this.chars += text.length;
    for (let first = this.pieces[0]; first !== undefined; first = this.pieces[0]) {
      if (this.chars - first.length < this.maxChars) return;
      this.pieces.shift();
      this.chars -= first.length;
      this.dropped = true;
    }
  }

  /** The last `maxChars`, without the half of a character that was parted. */
  end(): string {
    const text = this.pieces.join("");
    if (!this.isCut) return text;
    const tail = text.slice(-this.maxChars);
    return isLowSurrogate(tail.charCodeAt(0)) ? tail.slice(1) : tail;
  }
}

/** Small pieces are joined, so that their number has a bound. */
const JOIN_BELOW_CHARS = 4_096;

function isLowSurrogate(code: number): boolean {
  return code >= 0xdc00 && code <= 0xdfff;
}
