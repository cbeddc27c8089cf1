/** A one-way pipe out of a container: what a lane hears, kept until it is read, at most `HIGH_WATER_BYTES` of it. */
import type { HandPipe } from "../driver.ts";

const HIGH_WATER_BYTES = 256 * 1024;

export interface ContainerPipeOptions {
  /** Where a process inside opens it. */
  readonly path: string;
  /** More than is wanted has come, or little enough is left. */
  readonly onFull: () => void;
  readonly onDrained: () => void;
  /** See HandPipe.finish; not asked again once the pipe is over. */
  readonly finish: () => Promise<{ held: boolean }>;
}

export class ContainerPipe implements HandPipe {
  readonly path: string;
  readonly chunks: AsyncIterable<Uint8Array>;
  private readonly options: ContainerPipeOptions;
  private queue: Uint8Array[] = [];
  private queuedBytes = 0;
  private isOver = false;
  private isDropping = false;
  private isFull = false;
  private finishing: Promise<{ held: boolean }> | undefined;
  private wake = () => {};

  constructor(options: ContainerPipeOptions) {
    this.options = options;
    this.path = options.path;
    this.chunks = { [Symbol.asyncIterator]: () => this.iterate() };
  }

  /** Takes what came; nothing is taken after the end. */
  push(chunk: Uint8Array): void {
    if (this.isOver || this.isDropping) return;
    this.queue.push(chunk);
    this.queuedBytes += chunk.byteLength;
    if (this.queuedBytes >= HIGH_WATER_BYTES && !this.isFull) {
      this.isFull = true;
      this.options.onFull();
    }
    this.wake();
  }

  /** Nothing more comes. */
  end(): void {
    this.isOver = true;
    this.wake();
  }

  finish(): Promise<{ held: boolean }> {
    this.finishing ??= this.isOver ? Promise.resolve({ held: false }) : this.options.finish();
    return this.finishing;
  }

  abandon(): void {
    this.isDropping = true;
    this.queue = [];
    this.queuedBytes = 0;
    this.drained();
    this.wake();
  }

  private drained(): void {
    if (!this.isFull) return;
    this.isFull = false;
    this.options.onDrained();
  }

  private async *iterate(): AsyncGenerator<Uint8Array> {
    try {
      for (;;) {
        const chunk = this.queue.shift();
        if (chunk !== undefined) {
          this.queuedBytes -= chunk.byteLength;
          yield chunk;
          if (this.queuedBytes < HIGH_WATER_BYTES) this.drained();
        } else if (this.isOver || this.isDropping) return;
        else {
          await new Promise<void>((resolve) => {
            this.wake = resolve;
          });
        }
      }
    } finally {
      if (!this.isOver) this.abandon();
    }
  }
}
