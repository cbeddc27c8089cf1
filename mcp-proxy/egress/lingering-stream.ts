/**
 * A tunnel as TLS is put upon it. A TLS socket that has sent its last answer destroys what is below it at once, and a tunnel
 * that is destroyed before the other side has ended is cancelled with all that is still on its way: the end of the answer could
 * be cut off. So what was ended well is left to be delivered, for a while; what was not is destroyed, and looks broken.
 */
import { Duplex } from "node:stream";
import type { Clock } from "../../kit/clock.ts";

/** For the other side to take the rest and to end as well. */
const LINGER_MS = 10_000;

export class LingeringStream extends Duplex {
  private readonly tunnel: Duplex;
  private readonly clock: Clock;

  constructor(tunnel: Duplex, clock: Clock) {
    super({ allowHalfOpen: true });
    this.tunnel = tunnel;
    this.clock = clock;
    tunnel.on("data", this.onData);
    tunnel.once("end", () => this.push(null));
    tunnel.once("close", () => this.destroy());
    tunnel.once("error", (error) => this.destroy(error));
    tunnel.pause();
  }

  override _read(): void {
    this.tunnel.resume();
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, callback: (error?: Error | null) => void): void {
    this.tunnel.write(chunk, callback);
  }

  override _final(callback: (error?: Error | null) => void): void {
    this.tunnel.end(() => callback());
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    const { tunnel } = this;
    tunnel.off("data", this.onData);
    if (error === null && tunnel.writableEnded && !tunnel.destroyed) {
      const stop = this.clock.after(LINGER_MS, () => tunnel.destroy());
      tunnel.once("close", stop);
      // To hear of its end; what comes before it nobody reads any more.
      tunnel.resume();
    } else tunnel.destroy(error ?? undefined);
    callback(error);
  }

  private readonly onData = (chunk: Buffer): void => {
    if (!this.push(chunk)) this.tunnel.pause();
  };
}
