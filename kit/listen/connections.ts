/** The listener's open sockets, by the address and port of their other end. */

import type { Socket } from "node:net";
import type { Duplex } from "node:stream";

export function peerOf(socket: Socket): string {
  return `${socket.remoteAddress}:${socket.remotePort}`;
}

export class Connections {
  private readonly sockets = new Map<string, Set<Duplex>>();
  private waiters: (() => void)[] = [];

  /** Keeps the socket until it closes; a TLS socket is kept under the peer of the socket below it. */
  add(peer: string, socket: Duplex): void {
    const known = this.sockets.get(peer) ?? new Set();
    known.add(socket);
    this.sockets.set(peer, known);
    socket.once("close", () => {
      known.delete(socket);
      if (known.size === 0 && this.sockets.get(peer) === known) this.sockets.delete(peer);
      if (this.sockets.size === 0) for (const wake of this.waiters.splice(0)) wake();
    });
  }

  /** Resolves once no socket is open. */
  whenEmpty(): Promise<void> {
    if (this.sockets.size === 0) return Promise.resolve();
    return new Promise((resolve) => this.waiters.push(resolve));
  }

  /** Ends the connection at once, without waiting for anything the other side should send. */
  destroyPeer(peer: string): boolean {
    const known = this.sockets.get(peer);
    if (known === undefined) return false;
    for (const socket of [...known].reverse()) socket.destroy();
    return true;
  }

  destroyAll(): void {
    for (const peer of [...this.sockets.keys()]) this.destroyPeer(peer);
  }

  get size(): number {
    return this.sockets.size;
  }
}
