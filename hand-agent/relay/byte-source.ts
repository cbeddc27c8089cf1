/** Reads a connection's first bytes step by step; what was not taken stays for whoever reads on. */
import type { Socket } from "node:net";

export class ByteSource {
  private readonly socket: Socket;
  private seen: Buffer = Buffer.alloc(0);

  constructor(socket: Socket) {
    this.socket = socket;
  }

  /** What has come and was not taken. */
  get buffered(): Buffer {
    return this.seen;
  }

  /** Waits until at least `bytes` are buffered; false when the other side ends before. */
  async fill(bytes: number): Promise<boolean> {
    while (this.seen.length < bytes) {
      const chunk = await this.next();
      if (chunk === undefined) return false;
      this.seen = this.seen.length === 0 ? chunk : Buffer.concat([this.seen, chunk]);
    }
    return true;
  }

  /** Exactly `bytes`; undefined when the other side ends before. */
  async take(bytes: number): Promise<Buffer | undefined> {
    if (!(await this.fill(bytes))) return undefined;
    const taken = this.seen.subarray(0, bytes);
    this.seen = this.seen.subarray(bytes);
    return taken;
  }

  /** Puts back what was not taken; the socket is paused, with no listener of ours. Gives what cannot be put back, after the end. */
  release(): Buffer {
    const { seen, socket } = this;
    this.seen = Buffer.alloc(0);
    if (seen.length === 0 || socket.destroyed || socket.readableEnded) return seen;
    socket.unshift(seen);
    return this.seen;
  }

  private next(): Promise<Buffer | undefined> {
    const { socket } = this;
    if (socket.destroyed || socket.readableEnded) return Promise.resolve(undefined);
    return new Promise((resolve) => {
      const settle = (chunk: Buffer | undefined) => {
        socket.off("data", onData).off("end", onEnd).off("close", onEnd);
        socket.pause();
        resolve(chunk);
      };
      const onData = (chunk: Buffer) => settle(chunk);
      const onEnd = () => settle(undefined);
      socket.on("data", onData).on("end", onEnd).on("close", onEnd);
      socket.resume();
    });
  }
}
