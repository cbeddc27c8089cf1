/** Pushes back on whoever writes faster than the other side reads, counted in bytes. */
import type { Writable } from "node:stream";
import { STREAM_WINDOW_BYTES } from "../limits.ts";

/**
 * Writes encoded messages to a grpc-js stream. At most `STREAM_WINDOW_BYTES` and one message wait in memory: grpc-js
 * itself counts messages, sixteen of them, whatever their size.
 */
export class ByteWindow {
  private readonly stream: Writable;
  private queuedBytes = 0;
  private closedWith: (() => unknown) | undefined;
  private flushWaiters: (() => void)[] = [];
  private waiters: { resolve: () => void; reject: (reason: unknown) => void }[] = [];

  constructor(stream: Writable) {
    this.stream = stream;
  }

  /** Resolves when there is room for the next message, or undefined if there is room already. Rejects once closed. */
  write(message: Buffer): Promise<void> | undefined {
    if (this.closedWith !== undefined) return Promise.reject(this.closedWith());
    this.queuedBytes += message.length;
    this.stream.write(message, () => this.written(message.length));
    if (this.queuedBytes < STREAM_WINDOW_BYTES) return undefined;
    return new Promise((resolve, reject) => this.waiters.push({ resolve, reject }));
  }

  /** Nothing can be written any more; those who wait are told why. Most streams end with nobody to be told. */
  close(why: () => unknown): void {
    if (this.closedWith !== undefined) return;
    this.closedWith = why;
    const waiters = this.waiters;
    this.waiters = [];
    for (const waiter of waiters) waiter.reject(why());
    this.wakeFlushed();
  }

  /** Resolves when nothing waits in memory any more, or never will be sent. */
  async flushed(): Promise<void> {
    while (this.queuedBytes > 0 && this.closedWith === undefined) {
      await new Promise<void>((resolve) => this.flushWaiters.push(resolve));
    }
  }

  private written(bytes: number): void {
    this.queuedBytes -= bytes;
    if (this.queuedBytes === 0) this.wakeFlushed();
    if (this.waiters.length === 0 || this.queuedBytes > STREAM_WINDOW_BYTES / 2) return;
    const waiters = this.waiters;
    this.waiters = [];
    for (const waiter of waiters) waiter.resolve();
  }

  private wakeFlushed(): void {
    if (this.flushWaiters.length === 0) return;
    const waiters = this.flushWaiters;
    this.flushWaiters = [];
    for (const resolve of waiters) resolve();
  }
}
