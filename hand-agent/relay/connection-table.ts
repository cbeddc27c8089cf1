/** The connections of one hand's relay: counted, bounded, and ended when they stand still. */
import type { Socket } from "node:net";
import type { Clock } from "../../kit/clock.ts";
import { TunnelStream } from "../../kit/tunnel/tunnel-stream.ts";

export interface ConnectionLimits {
  /** Connections of one hand. */
  readonly maxConnections: number;
  /** Without a way out yet: sending a request, or between two. */
  readonly requestMs: number;
  /** Without a byte in either direction. */
  readonly idleMs: number;
  /** The same, once one side has said that it sends no more. */
  readonly halfOpenMs: number;
}

/** Connections of all hands of this agent together, so that they leave it descriptors. */
export class ConnectionBudget {
  private left: number;

  constructor(connections: number) {
    this.left = connections;
  }

  take(): boolean {
    if (this.left === 0) return false;
    this.left -= 1;
    return true;
  }

  give(): void {
    this.left += 1;
  }
}

/** What a connection leads to. */
export type Upstream = Socket | TunnelStream;

export class RelayConnection {
  readonly client: Socket;
  /** Where it leads at the moment; requests over one HTTP connection lead to one place each. */
  private readonly upstreams = new Set<Upstream>();
  private bytesSeen = 0;
  private quietSinceMs: number;

  constructor(client: Socket, nowMs: number) {
    this.client = client;
    this.quietSinceMs = nowMs;
    client.once("close", () => this.clientClosed());
  }

  add(upstream: Upstream): void {
    this.upstreams.add(upstream);
    upstream.once("close", () => this.upstreams.delete(upstream));
  }

  /** Where both directions have ended well, a tunnel still sends on what came last, and ends by itself. */
  private clientClosed(): void {
    const isDone = this.client.readableEnded && this.client.writableFinished;
    for (const upstream of this.upstreams) {
      if (!(isDone && upstream instanceof TunnelStream && upstream.writableEnded)) upstream.destroy();
    }
  }

  destroy(): void {
    this.client.destroy();
    for (const upstream of this.upstreams) upstream.destroy();
  }

  isStale(nowMs: number, limits: ConnectionLimits): boolean {
    const sockets = [this.client, ...this.upstreams];
    const bytes = sockets.reduce((sum, { bytesRead, bytesWritten }) => sum + bytesRead + bytesWritten, 0);
    if (bytes !== this.bytesSeen) {
      this.bytesSeen = bytes;
      this.quietSinceMs = nowMs;
    }
    return nowMs - this.quietSinceMs > this.allowedMs(sockets, limits);
  }

  private allowedMs(
    sockets: readonly Upstream[],
    { requestMs, idleMs, halfOpenMs }: ConnectionLimits,
  ): number {
    if (this.upstreams.size === 0) return requestMs;
    return sockets.some(({ readableEnded }) => readableEnded) ? halfOpenMs : idleMs;
  }
}

const SWEEP_MS = 1_000;

export class ConnectionTable {
  private readonly clock: Clock;
  private readonly limits: ConnectionLimits;
  private readonly budget: ConnectionBudget;
  private readonly connections = new Map<Socket, RelayConnection>();
  private readonly stopSweeping: () => void;
  private accepted = 0;
  private bytesOfClosed = { out: 0, in: 0 };

  constructor(options: { clock: Clock; limits: ConnectionLimits; budget: ConnectionBudget }) {
    this.clock = options.clock;
    this.limits = options.limits;
    this.budget = options.budget;
    this.stopSweeping = this.clock.every(SWEEP_MS, () => this.sweep());
  }

  /** Undefined when there are too many. */
  add(client: Socket): RelayConnection | undefined {
    if (this.connections.size >= this.limits.maxConnections || !this.budget.take()) return undefined;
    const connection = new RelayConnection(client, this.clock.monotonicMs());
    this.connections.set(client, connection);
    this.accepted += 1;
    client.once("close", () => {
      this.connections.delete(client);
      this.budget.give();
      this.bytesOfClosed.out += client.bytesRead;
      this.bytesOfClosed.in += client.bytesWritten;
    });
    return connection;
  }

  of(client: Socket): RelayConnection | undefined {
    return this.connections.get(client);
  }

  stats(): { open: number; accepted: number; bytesOut: number; bytesIn: number } {
    const bytes = { ...this.bytesOfClosed };
    for (const { client } of this.connections.values()) {
      bytes.out += client.bytesRead;
      bytes.in += client.bytesWritten;
    }
    const { accepted } = this;
    return { open: this.connections.size, accepted, bytesOut: bytes.out, bytesIn: bytes.in };
  }

  /** Ends all. Resolves when all are closed. */
  async close(): Promise<void> {
    this.stopSweeping();
    const closed = [...this.connections.values()].map(
      ({ client }) => new Promise<void>((resolve) => client.once("close", () => resolve())),
    );
    for (const connection of this.connections.values()) connection.destroy();
    await Promise.all(closed);
  }

  private sweep(): void {
    const nowMs = this.clock.monotonicMs();
    for (const connection of this.connections.values()) {
      if (connection.isStale(nowMs, this.limits)) connection.destroy();
    }
  }
}
