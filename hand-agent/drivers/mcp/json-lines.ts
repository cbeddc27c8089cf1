/** Cuts a stream of bytes into lines, none of which is held above a bound. */

const NEWLINE = 10;

export class JsonLines {
  private readonly maxBytes: number;
  private readonly onLine: (line: string) => void;
  private readonly onTooLong: () => void;
  private parts: Uint8Array[] = [];
  private bytes = 0;
  private isOver = false;

  /** `onTooLong` is told once; nothing comes after it. */
  constructor(maxBytes: number, onLine: (line: string) => void, onTooLong: () => void) {
    this.maxBytes = maxBytes;
    this.onLine = onLine;
    this.onTooLong = onTooLong;
  }

  push(chunk: Uint8Array): void {
    let from = 0;
    while (!this.isOver) {
      const end = chunk.indexOf(NEWLINE, from);
      this.keep(chunk.subarray(from, end < 0 ? undefined : end));
      if (end < 0 || this.isOver) return;
      const line = Buffer.concat(this.parts).toString("utf8");
      this.parts = [];
      this.bytes = 0;
      if (line.trim() !== "") this.onLine(line);
      from = end + 1;
    }
  }

  private keep(part: Uint8Array): void {
    this.bytes += part.byteLength;
    if (this.bytes > this.maxBytes) {
      this.isOver = true;
      this.parts = [];
      this.onTooLong();
    } else if (part.byteLength > 0) this.parts.push(part);
  }
}
