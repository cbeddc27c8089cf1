/**
 * Connections of this agent's sandboxes that go to the proxy, each on a stream of its own over the agent's connection.
 * The server looks up whose hand it is and whether it may, at each; here the hand and what it wants are named, and the
 * number of its owner. Nothing is opened while there is no connection, and all end with it.
 */
import { type Clock, within } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";
import { openTunnel, type TunnelStream } from "../../kit/tunnel/tunnel-stream.ts";
import { TunnelKind } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { Tunnel } from "../tunnel/connection.ts";

/** Fewer than the connection carries streams: calls need some. */
const MAX_OPEN = 1_000;
/** Longer than the server waits for the proxy, here and over another replica. */
const OPEN_WITHIN_MS = 25_000;

const KINDS = { git: TunnelKind.GIT, egress: TunnelKind.EGRESS } as const;

export interface TunnelWish {
  readonly handId: string;
  readonly kind: keyof typeof KINDS;
  readonly host: string;
  readonly port: number;
}

interface Open {
  readonly handId: string;
  readonly ownerNumber: bigint;
  readonly stop: AbortController;
}

export class SandboxTunnels {
  private readonly clock: Clock;
  private readonly open = new Set<Open>();
  private connection: Tunnel | undefined;
  /** The hand's owner as this agent knows it; undefined for a hand that is not here. */
  ownerOf: (handId: string) => bigint | undefined = () => undefined;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  get size(): number {
    return this.open.size;
  }

  connected(connection: Tunnel): void {
    this.connection = connection;
  }

  disconnected(): void {
    this.connection = undefined;
  }

  /** Resolves when the tunnel stands. Rejects with the TendonError that refused it; `signal` gives the attempt up. */
  async connect({ handId, kind, host, port }: TunnelWish, signal: AbortSignal): Promise<TunnelStream> {
    const { connection } = this;
    if (connection === undefined)
      throw refused("UNAVAILABLE", "the hand agent has no connection to its server");
    if (this.open.size >= MAX_OPEN)
      throw refused("LIMIT_EXCEEDED", "the hand agent has too many tunnels open");
    const ownerNumber = this.ownerOf(handId);
    if (ownerNumber === undefined) throw refused("NOT_FOUND", "the hand is not here any more");
    const stop = new AbortController();
    const entry: Open = { handId, ownerNumber, stop };
    const giveUp = () => stop.abort(signal.reason);
    signal.addEventListener("abort", giveUp, { once: true });
    this.open.add(entry);
    try {
      signal.throwIfAborted();
      const both = AbortSignal.any([connection.signal, stop.signal]);
      const call = connection.client.streamTunnel({ signal: both });
      const opened = openTunnel(call, { handId, kind: KINDS[kind], host, port, ownerNumber });
      const late = () => refused("DEADLINE_EXCEEDED", "the server did not open the tunnel in time");
      const stream = await within(this.clock, OPEN_WITHIN_MS, opened, late);
      stream.once("close", () => this.open.delete(entry));
      return stream;
    } catch (error) {
      this.open.delete(entry);
      stop.abort(error);
      throw error;
    } finally {
      signal.removeEventListener("abort", giveUp);
    }
  }

  /** The hand has another owner, or is gone: what it had opened before ends. */
  endAll(handId: string, beforeOwner?: bigint): void {
    for (const { handId: id, ownerNumber, stop } of this.open) {
      if (id !== handId || (beforeOwner !== undefined && ownerNumber >= beforeOwner)) continue;
      stop.abort(refused("LEASE_FENCED", "the hand belongs to another session now"));
    }
  }
}

function refused(
  reason: "UNAVAILABLE" | "LIMIT_EXCEEDED" | "NOT_FOUND" | "DEADLINE_EXCEEDED" | "LEASE_FENCED",
  message: string,
) {
  return new TendonError(reason, message, { part: "tunnel" });
}
