/**
 * Joins the two calls that carry the ends of one tunnel. Each call is answered with what the other one sends, part by
 * part, at the pace of its reader: nothing is kept here, so a slow reader at one end holds the sender at the other back.
 *
 *   J1 It ends well once both sides have sent their `end`; then both calls end well.
 *   J2 Anything else ends both calls at once with one error, also a call whose caller does not read.
 *   J3 Without a byte in either direction it ends after IDLE_MS, and after HALF_OPEN_MS once one side has ended.
 */
import { abortable } from "../../kit/abortable.ts";
import type { Clock } from "../../kit/clock.ts";
import { messageOf, TendonError } from "../../kit/errors.ts";
import type { TunnelPart } from "../../kit/tunnel/tunnel-part.ts";
import type { TunnelCall } from "../ports/tunnels.ts";

/** A little more than the relay in the sandbox allows, which says so first. */
const IDLE_MS = 660_000;
const HALF_OPEN_MS = 120_000;

/** 0: who asked for the tunnel. 1: who was asked. */
export type Side = 0 | 1;

export class Joint {
  private readonly clock: Clock;
  private readonly forget: () => void;
  private readonly ending = new AbortController();
  private readonly arrivals: readonly [Arrival, Arrival] = [arrival(), arrival()];
  private readonly hasEnded: [boolean, boolean] = [false, false];
  private readonly over: Promise<void>;
  private markOver = () => {};
  private quietSinceMs: number;
  private isOver = false;

  constructor(clock: Clock, forget: () => void) {
    this.clock = clock;
    this.forget = forget;
    this.quietSinceMs = clock.monotonicMs();
    this.over = new Promise((resolve) => {
      this.markOver = resolve;
    });
  }

  /** Aborts when it fails. */
  get signal(): AbortSignal {
    return this.ending.signal;
  }

  /** Resolves when the call of that side is here; rejects when the tunnel fails before. */
  arrived(side: Side): Promise<unknown> {
    return abortable(this.arrivals[side].parts, this.signal);
  }

  hasArrived(side: Side): boolean {
    return this.arrivals[side].isHere;
  }

  /** What the call of this side is to be sent. To be read to its end, once. */
  async *carry(side: Side, parts: AsyncIterator<TunnelPart>, call: TunnelCall): AsyncGenerator<TunnelPart> {
    const other = side === 0 ? 1 : 0;
    const broke = () => this.fail(brokenOff());
    const cut = () => call.fail(this.signal.reason);
    call.signal.addEventListener("abort", broke, { once: true });
    this.signal.addEventListener("abort", cut, { once: true });
    if (call.signal.aborted) broke();
    this.arrivals[side].give(parts);
    try {
      const from = await abortable(this.arrivals[other].parts, this.signal);
      for (;;) {
        const next = await abortable(from.next(), this.signal);
        if (next.done) throw brokenOff();
        this.quietSinceMs = this.clock.monotonicMs();
        yield next.value;
        if (next.value.case === "end") break;
      }
      this.ended(other);
      await abortable(this.over, this.signal);
    } catch (error) {
      this.fail(error);
      throw this.signal.aborted ? this.signal.reason : error;
    } finally {
      call.signal.removeEventListener("abort", broke);
      this.signal.removeEventListener("abort", cut);
      // Reached by `return` too, when the call's caller has gone.
      this.fail(brokenOff());
    }
  }

  /** Only the first end counts. */
  fail(reason: unknown): void {
    if (this.isOver) return;
    this.isOver = true;
    this.forget();
    const error = reason instanceof TendonError ? reason : brokenOff(messageOf(reason));
    this.ending.abort(error);
  }

  endIfQuiet(): void {
    const limitMs = this.hasEnded.includes(true) ? HALF_OPEN_MS : IDLE_MS;
    if (this.clock.monotonicMs() - this.quietSinceMs <= limitMs) return;
    this.fail(
      new TendonError("DEADLINE_EXCEEDED", "the tunnel stood still for too long", { part: "tunnel" }),
    );
  }

  private ended(side: Side): void {
    this.hasEnded[side] = true;
    if (this.hasEnded.includes(false) || this.isOver) return;
    this.isOver = true;
    this.forget();
    this.markOver();
  }
}

interface Arrival {
  readonly parts: Promise<AsyncIterator<TunnelPart>>;
  isHere: boolean;
  give(parts: AsyncIterator<TunnelPart>): void;
}

function arrival(): Arrival {
  let resolve: (parts: AsyncIterator<TunnelPart>) => void = () => {};
  const parts = new Promise<AsyncIterator<TunnelPart>>((give) => {
    resolve = give;
  });
  const made: Arrival = {
    parts,
    isHere: false,
    give(given) {
      made.isHere = true;
      resolve(given);
    },
  };
  return made;
}

export function brokenOff(why = "its other end has gone"): TendonError {
  return new TendonError("UNAVAILABLE", `the tunnel broke off: ${why}`, { part: "tunnel" });
}
