/** Lines of a program's output, each within a bound: what has no end in time is no line. */
import { TextDecoder } from "node:util";
import { BadProgram, MAX_LINE_BYTES } from "./protocol.ts";

export class LineReader {
  private readonly decoder = new TextDecoder("utf-8", { fatal: true });
  private parts: Buffer[] = [];
  private bytes = 0;

  /** The lines that are whole with these bytes; empty ones are left out. Throws BadProgram. */
  *take(chunk: Buffer): Generator<string> {
    let from = 0;
    for (;;) {
      const end = chunk.indexOf(0x0a, from);
      this.keep(chunk.subarray(from, end < 0 ? chunk.length : end));
      if (end < 0) return;
      const line = this.finish();
      if (line.trim() !== "") yield line;
      from = end + 1;
    }
  }

  private keep(part: Buffer): void {
    this.bytes += part.length;
    if (this.bytes > MAX_LINE_BYTES) {
      throw new BadProgram("LOOP_LINE_TOO_LONG", `it wrote a line of more than ${MAX_LINE_BYTES} bytes`);
    }
    if (part.length > 0) this.parts.push(part);
  }

  private finish(): string {
    const bytes = Buffer.concat(this.parts);
    this.parts = [];
    this.bytes = 0;
    try {
      return this.decoder.decode(bytes);
    } catch {
      throw new BadProgram("LOOP_BAD_LINE", "it wrote a line that is not UTF-8");
    }
  }
}
