/**
 * One end of a tunnel as a Duplex with half-close, over the call that carries it. What is not read is not asked for, and
 * a write waits until the call has room, so a slow reader at one end holds the writer at the other back. Whatever ends
 * the call early destroys the stream with its error, also while nobody reads; destroying the stream early ends the call.
 */
import { Duplex } from "node:stream";
import { systemClock } from "../clock.ts";
import { TendonError } from "../errors.ts";
import { MAX_PART_BYTES, partsOfResponses, type TunnelPart } from "./tunnel-part.ts";

/** For the server to end a call both of whose directions have ended. */
const END_WITHIN_MS = 5_000;

/** A call that carries a tunnel from the side that dialled: HandAgentService.StreamTunnel or ProxyService.OpenTunnel. */
export interface CarryingCall {
  send(request: object): Promise<void>;
  end(): void;
  cancel(): void;
  readonly responses: AsyncIterable<{
    readonly data: Uint8Array;
    readonly opened: boolean;
    readonly end: boolean;
  }>;
  readonly ended: Promise<TendonError | undefined>;
}

export class TunnelStream extends Duplex {
  /** Of the data, without what carries it. */
  bytesRead = 0;
  bytesWritten = 0;
  private readonly call: CarryingCall;
  private readonly parts: AsyncIterator<TunnelPart>;
  private hasSentEnd = false;
  private hasHeardEnd = false;

  constructor(call: CarryingCall, parts: AsyncIterator<TunnelPart>) {
    super({
      allowHalfOpen: true,
      readableHighWaterMark: MAX_PART_BYTES,
      writableHighWaterMark: MAX_PART_BYTES,
    });
    this.call = call;
    this.parts = parts;
    void call.ended.then((failure) => {
      if (failure !== undefined) this.destroy(failure);
    });
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, callback: (error?: Error | null) => void): void {
    this.send(chunk).then(() => callback(), callback);
  }

  override _final(callback: (error?: Error | null) => void): void {
    this.hasSentEnd = true;
    this.call.send({ kind: { case: "end", value: {} } }).then(() => callback(), callback);
  }

  override _read(): void {
    this.parts.next().then(
      (next) => {
        if (this.destroyed) return;
        if (next.done) return void this.destroy(brokenOff());
        if (next.value.case === "end") {
          this.hasHeardEnd = true;
          this.push(null);
          return;
        }
        this.bytesRead += next.value.value.length;
        this.push(next.value.value);
      },
      (error: unknown) => this.destroy(error instanceof Error ? error : brokenOff()),
    );
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    if (error === null && this.hasSentEnd && this.hasHeardEnd) this.leave();
    else this.call.cancel();
    callback(error);
  }

  /** Both directions have ended: what was sent last is still on its way, and the server ends the call when it has it. */
  private leave(): void {
    this.call.end();
    const stop = systemClock.after(END_WITHIN_MS, () => this.call.cancel());
    void this.call.ended.then(stop);
    const drain = async () => {
      while (!(await this.parts.next()).done);
    };
    drain().catch(() => {});
  }

  private async send(chunk: Buffer): Promise<void> {
    for (let from = 0; from < chunk.length; from += MAX_PART_BYTES) {
      const value = chunk.subarray(from, from + MAX_PART_BYTES);
      this.bytesWritten += value.length;
      await this.call.send({ kind: { case: "data", value } });
    }
  }
}

/** Opens the tunnel that `open` names. Resolves when it stands; rejects with the TendonError that refused it. */
export async function openTunnel(call: CarryingCall, open: object): Promise<TunnelStream> {
  const responses = call.responses[Symbol.asyncIterator]();
  try {
    await call.send({ kind: { case: "open", value: open } });
    const first = await responses.next();
    if (first.done || !first.value.opened) throw brokenOff();
  } catch (error) {
    call.cancel();
    throw (await failureOf(call, error)) ?? error;
  }
  return new TunnelStream(call, partsOfResponses(responses));
}

/** A send that fails says only that the call is over; the call says why. */
async function failureOf(call: CarryingCall, error: unknown): Promise<unknown> {
  return error instanceof TendonError && error.reason !== "CANCELLED" ? error : call.ended;
}

function brokenOff(): TendonError {
  return new TendonError("UNAVAILABLE", "the tunnel broke off", { part: "tunnel" });
}
