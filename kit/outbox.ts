/**
 * A bounded queue between whoever has something to say and the one stream that says it. Writers never wait: a stream
 * whose reader has fallen so far behind that the queue is full is ended, and its reader starts anew.
 */
import { TendonError } from "./errors.ts";

export class Outbox<T> implements AsyncIterable<T> {
  private readonly items: T[] = [];
  private readonly limit: number;
  private ended: { error: unknown } | undefined;
  private wakeReader: (() => void) | undefined;

  constructor(limit: number) {
    this.limit = limit;
  }

  get length(): number {
    return this.items.length;
  }

  get isOpen(): boolean {
    return this.ended === undefined;
  }

  /** False once the outbox has ended, also by this call when it is full. */
  push(item: T): boolean {
    if (this.ended !== undefined) return false;
    if (this.items.length >= this.limit) {
      this.items.length = 0;
      this.end(
        new TendonError("LIMIT_EXCEEDED", `the reader of this stream is ${this.limit} messages behind`),
      );
      return false;
    }
    this.items.push(item);
    this.wakeReader?.();
    return true;
  }

  /** What is queued is still read; then the iteration ends, or throws `error`. Only the first call counts. */
  end(error?: unknown): void {
    if (this.ended !== undefined) return;
    this.ended = { error };
    this.wakeReader?.();
  }

  /** For one reader. Its `return` ends the outbox. */
  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    try {
      for (;;) {
        while (this.items.length > 0) yield this.items.shift() as T;
        if (this.ended !== undefined) {
          if (this.ended.error !== undefined) throw this.ended.error;
          return;
        }
        await new Promise<void>((resolve) => {
          this.wakeReader = resolve;
        });
        this.wakeReader = undefined;
      }
    } finally {
      this.end();
    }
  }
}
