/**
 * Named pipes between a hand and its agent. One end is a path that a process inside opens, so nothing has to be
 * passed on or inherited by accident: every call gets a pipe of its own (X6).
 */
import { randomBytes } from "node:crypto";
import { closeSync, constants, fstatSync, openSync, readSync, statSync, unlinkSync } from "node:fs";
import { Socket, type SocketConstructorOpts, type TcpNetConnectOpts } from "node:net";
import { join } from "node:path";
import { HandError, type HandPipe } from "../driver.ts";

/** Bytes that may wait for a slow reader; then the pipe fills and its writer waits. */
const HIGH_WATER_BYTES = 256 * 1024;
/** The most a pipe can hold unless its owner is privileged: what was written before `finish` is never more. */
const MAX_PIPE_BYTES = 1024 * 1024;
/** Filled and copied from within one step of the event loop, so one is enough for all pipes. */
const SCRATCH = Buffer.allocUnsafeSlow(64 * 1024);

/** The hand has removed, replaced or closed off a pipe that was made for it; others may be well. */
export class PipeLost extends HandError {}

const REPLACED = "a pipe of the hand was replaced by something else";
/** What opening says when the hand has changed what lies in its folder of pipes. */
const LOST_CODES = new Set(["ENOENT", "ENOTDIR", "ELOOP", "ENXIO", "EISDIR", "EACCES"]);

/** An agent that is root opens what the hand's own processes could not. Throws PipeLost. */
export function checkPassable(dir: string): void {
  const mode = statSync(dir, { throwIfNoEntry: false })?.mode ?? 0;
  if ((mode & 0o700) !== 0o700) throw new PipeLost("the folder of the hand's pipes was closed off");
}

/** Opens a name in a folder that is the hand's: nothing there is followed or waited for. The path is the agent's affair. */
function openEnd(path: string, flags: number): number {
  try {
    return openSync(path, flags | constants.O_NONBLOCK | constants.O_NOFOLLOW);
  } catch (error) {
    const { code = "an error" } = error as NodeJS.ErrnoException;
    if (LOST_CODES.has(code)) throw new PipeLost(`a pipe of the hand was removed or closed off (${code})`);
    throw new HandError(`a pipe of the hand could not be opened: ${code}`);
  }
}

export class FifoPipe implements HandPipe {
  readonly path: string;
  readonly chunks: AsyncIterable<Uint8Array>;
  /** The identity of the pipe, also for a process that holds it open after its name is gone. */
  readonly key: string;
  /** Resolves when nobody holds the writing end any more, or the pipe was let go. */
  readonly ended: Promise<void>;
  private resolveEnded = () => {};
  private readonly fd: number;
  private readonly socket: Socket;
  /** A writer of our own: without it the pipe would have ended before anybody opened it. */
  private keeperFd: number | undefined;
  private queue: Uint8Array[] = [];
  private queuedBytes = 0;
  private finished = false;
  private dropping = false;
  private closed = false;
  private wake: () => void = () => {};
  private readonly onClosed: (pipe: FifoPipe) => void;

  constructor(path: string, onClosed: (pipe: FifoPipe) => void) {
    this.path = path;
    this.onClosed = onClosed;
    this.ended = new Promise((resolve) => {
      this.resolveEnded = resolve;
    });
    this.fd = openEnd(path, constants.O_RDONLY);
    try {
      const stat = fstatSync(this.fd, { bigint: true });
      if (!stat.isFIFO()) throw new PipeLost(REPLACED);
      this.key = `${stat.dev}:${stat.ino}`;
      this.keeperFd = openEnd(path, constants.O_WRONLY);
    } catch (error) {
      closeSync(this.fd);
      throw error;
    }
    // `onread` hands bytes over at once, so that none wait inside the socket when `finish` reads on by itself.
    const options: SocketConstructorOpts & Pick<TcpNetConnectOpts, "onread"> = {
      fd: this.fd,
      readable: true,
      writable: false,
      onread: {
        buffer: SCRATCH,
        callback: (length, buffer) => this.take(Buffer.from(buffer.subarray(0, length))),
      },
    };
    this.socket = new Socket(options);
    this.socket.on("error", () => this.close());
    this.socket.on("end", () => this.close());
    this.socket.on("close", () => this.close());
    this.chunks = { [Symbol.asyncIterator]: () => this.iterate() };
  }

  get isFinished(): boolean {
    return this.finished;
  }

  /** A process has opened it: from now on it ends with its last writer. */
  opened(): void {
    this.releaseKeeper();
  }

  finish(): { held: boolean } {
    if (this.finished) return { held: !this.closed };
    this.socket.pause();
    this.releaseKeeper();
    const held = this.drain();
    this.finished = true;
    this.dropping = true;
    this.wake();
    if (held) this.socket.resume();
    else this.close();
    return { held };
  }

  abandon(): void {
    if (this.closed) return;
    this.dropping = true;
    this.queue = [];
    this.queuedBytes = 0;
    this.finished = true;
    this.releaseKeeper();
    this.socket.resume();
    this.wake();
  }

  /** Lets go of the pipe; a process that still writes to it gets SIGPIPE. */
  close(): void {
    if (this.closed) return;
    this.closed = true;
    this.finished = true;
    this.releaseKeeper();
    this.socket.destroy();
    this.wake();
    this.resolveEnded();
    this.onClosed(this);
  }

  private take(chunk: Uint8Array): boolean {
    if (this.dropping) return true;
    this.queue.push(chunk);
    this.queuedBytes += chunk.byteLength;
    this.wake();
    if (this.queuedBytes < HIGH_WATER_BYTES) return true;
    this.socket.pause();
    return false;
  }

  /** Reads what is in the pipe at this moment; says whether a writer is left. */
  private drain(): boolean {
    for (let total = 0; total < MAX_PIPE_BYTES; ) {
      let length: number;
      try {
        length = readSync(this.fd, SCRATCH, 0, SCRATCH.length, null);
      } catch (error) {
        return (error as NodeJS.ErrnoException).code === "EAGAIN";
      }
      if (length === 0) return false;
      total += length;
      if (!this.dropping) this.queue.push(Buffer.from(SCRATCH.subarray(0, length)));
    }
    return true;
  }

  private async *iterate(): AsyncGenerator<Uint8Array> {
    try {
      for (;;) {
        const chunk = this.queue.shift();
        if (chunk) {
          this.queuedBytes -= chunk.byteLength;
          yield chunk;
          if (this.queuedBytes < HIGH_WATER_BYTES && !this.finished) this.socket.resume();
        } else if (this.finished) return;
        else {
          await new Promise<void>((resolve) => {
            this.wake = resolve;
          });
        }
      }
    } finally {
      if (!this.finished) this.abandon();
    }
  }

  private releaseKeeper(): void {
    if (this.keeperFd === undefined) return;
    closeSync(this.keeperFd);
    this.keeperFd = undefined;
    try {
      unlinkSync(this.path);
    } catch {
      // the hand removed the name itself
    }
  }
}

/** The agent's writing end of a named pipe that a process reads as its standard input. */
export class FifoInput {
  readonly path: string;
  private readonly socket: Socket;

  constructor(path: string) {
    this.path = path;
    // Read and write: opening for writing alone fails until somebody reads.
    const fd = openEnd(path, constants.O_RDWR);
    if (!fstatSync(fd).isFIFO()) {
      closeSync(fd);
      throw new PipeLost(REPLACED);
    }
    this.socket = new Socket({ fd, readable: false, writable: true });
    this.socket.on("error", () => {});
  }

  write(data: string | Uint8Array): Promise<void> {
    return new Promise((resolve, reject) => {
      if (!this.socket.writable) return reject(new HandError("the process takes no input"));
      this.socket.write(data, (error) =>
        error ? reject(new HandError("the process took no more input")) : resolve(),
      );
    });
  }

  close(): void {
    if (this.socket.destroyed) return;
    this.socket.destroy();
    try {
      unlinkSync(this.path);
    } catch {
      // the hand removed the name itself
    }
  }
}

/** Named pipes are made ahead, a batch at a time, so that a call waits for none. */
export class FifoStock {
  private readonly dir: string;
  private readonly make: (names: readonly string[]) => Promise<void>;
  private names: string[] = [];
  private next = 0;
  private series = "";
  private refill: Promise<void> | undefined;

  constructor(dir: string, make: (names: readonly string[]) => Promise<void>) {
    this.dir = dir;
    this.make = make;
  }

  async take(): Promise<string> {
    for (;;) {
      if (this.names.length < LOW_STOCK) this.startRefill();
      const name = this.names.shift();
      if (name !== undefined) return join(this.dir, name);
      await this.refill;
    }
  }

  /** The hand has changed what lies in the folder: nothing that was made before is trusted, names start anew. */
  discard(): void {
    for (const name of this.names.splice(0)) {
      try {
        unlinkSync(join(this.dir, name));
      } catch {
        // gone already, or no pipe
      }
    }
    this.series = `${randomBytes(4).toString("hex")}-`;
  }

  private startRefill(): void {
    if (this.refill) return;
    const names = Array.from({ length: BATCH }, () => `p${this.series}${this.next++}`);
    this.refill = this.make(names)
      .then(() => {
        this.names.push(...names);
      })
      .finally(() => {
        this.refill = undefined;
      });
    this.refill.catch(() => {}); // the next `take` sees it
  }
}

const BATCH = 64;
const LOW_STOCK = 24;
