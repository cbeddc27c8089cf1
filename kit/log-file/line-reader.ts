/** Cuts a stream of bytes into lines, with what they have in bytes so far. */
import { createHash } from "node:crypto";
import { invalidField, TendonError } from "../errors.ts";

/** Bounds what all readers hold together. */
export interface LineBudget {
  /** Throws when too much is taken. */
  take(bytes: number): void;
  giveBack(bytes: number): void;
}

export interface Line {
  /** From 1. */
  readonly number: number;
  readonly text: string;
  /** SHA-256 of all lines before this one, lower-case hex; until the next line is asked for. */
  sha256Before(): string;
}

export class LineReader {
  private readonly budget: LineBudget;
  private readonly maxLineBytes: number;
  private readonly hash = createHash("sha256");
  private held: Uint8Array[] = [];
  private heldBytes = 0;
  private number = 0;

  constructor(budget: LineBudget, maxLineBytes: number) {
    this.budget = budget;
    this.maxLineBytes = maxLineBytes;
  }

  /** MESSAGE_TOO_LARGE, INVALID_FIELD for what is not UTF-8, UNAVAILABLE. */
  async *read(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Line> {
    for await (const chunk of chunks) {
      let from = 0;
      for (let at = chunk.indexOf(10); at >= 0; at = chunk.indexOf(10, from)) {
        this.hold(chunk.subarray(from, at + 1));
        yield* this.line();
        from = at + 1;
      }
      this.hold(chunk.subarray(from));
    }
    if (this.heldBytes > 0) yield* this.line();
  }

  /** Of everything that was read. */
  sha256(): string {
    return this.hash.copy().digest("hex");
  }

  /** Gives the memory back. */
  close(): void {
    this.held = [];
    this.budget.giveBack(this.heldBytes);
    this.heldBytes = 0;
  }

  private hold(bytes: Uint8Array): void {
    if (this.heldBytes + bytes.length > this.maxLineBytes) {
      const line = this.number + 1;
      throw new TendonError("MESSAGE_TOO_LARGE", `line ${line}: has more than ${this.maxLineBytes} bytes`, {
        line: String(line),
        limit: String(this.maxLineBytes),
      });
    }
    this.budget.take(bytes.length);
    this.held.push(bytes);
    this.heldBytes += bytes.length;
  }

  private *line(): Generator<Line> {
    this.number += 1;
    const bytes = this.held.length === 1 ? this.held[0]! : Buffer.concat(this.held);
    yield { number: this.number, text: decode(bytes, this.number), sha256Before: () => this.sha256() };
    this.hash.update(bytes);
    this.close();
  }
}

function decode(bytes: Uint8Array, number: number): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw invalidField(`line ${number}`, "is not UTF-8");
  }
}
