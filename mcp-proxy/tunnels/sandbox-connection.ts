/**
 * A connection that a program in a sandbox opened, as it arrives in the proxy: relay in the sandbox's network namespace,
 * hand agent, server, proxy. Nobody on the way reads its bytes. What the fields say is the server's word, looked up when
 * the connection was opened: the agent only names the hand.
 *
 * For handlers: `stream` is a Duplex with half-close (`allowHalfOpen`), so it goes into an http.Server by
 * `server.emit("connection", stream)` or into TLS as its underlying stream. What is not read is not sent: whoever
 * stops reading holds the sender in the sandbox back. End or destroy it when done; it is destroyed, with an error, when
 * anything on the way is gone. A handler returns at once and throws nothing.
 */
import type { Duplex } from "node:stream";

/** `git`: HTTP in plain text, for the proxy's git handler. `egress`: what follows a CONNECT, mostly TLS. */
export type SandboxConnectionKind = "egress" | "git";

export interface SandboxConnection {
  readonly tunnelId: string;
  /** Session that owns the hand now; for a hand of a session tree, the session whose hand it is. */
  readonly sessionId: string;
  readonly workspaceId: string;
  /** The session's newest lease epoch when the connection was opened; 0 when it never had a lease. */
  readonly epoch: number;
  readonly handId: string;
  readonly kind: SandboxConnectionKind;
  /** Lower case, without a dot at its end; the server allowed the hand to reach it by this kind. */
  readonly host: string;
  readonly port: number;
  /** For egress: names of the session's variables that are for this host. */
  readonly variables: readonly string[];
  /** For git: the hand's repositories at this host, with the branches that may be pushed to; empty: all. */
  readonly repositories: readonly GivenRepository[];
  readonly stream: Duplex;
}

export interface GivenRepository {
  readonly url: string;
  readonly pushBranches: readonly string[];
}

export type ConnectionHandler = (connection: SandboxConnection) => void;
