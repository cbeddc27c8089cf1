/**
 * Requests to servers that only a network with hand agents reaches (`hand-agent://…`, and `https://…` where an environment
 * names a pool for it): each connection is a tunnel through
 * the server of Tendon and a hand agent of the session's workspace. TLS begins here and ends at the far side, with the
 * certificate checked against the far side's own name. What may be dialled is the hand agent's machine's to say; the rules
 * for this machine's own network mean nothing there.
 *
 * Connections are kept for a session and a pool, never shared between sessions.
 */
import { Agent as HttpAgent } from "node:http";
import { Agent as HttpsAgent } from "node:https";
import type { Duplex } from "node:stream";
import type { Clock } from "../../kit/clock.ts";
import { isTendonError, messageOf, TendonError } from "../../kit/errors.ts";
import { parseHandAgentUrl } from "../../kit/network/hand-agent-url.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { openTunnel, type TunnelStream } from "../../kit/tunnel/tunnel-stream.ts";
import type { ProxyService } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import { createFetch, type OutboundRequest } from "./fetch.ts";
import { notReached, OutboundRefusal } from "./refusal.ts";
import { secureSocket } from "./secure-socket.ts";

export interface PrivateNetworksDeps {
  readonly client: Pick<Client<typeof ProxyService>, "openTunnel">;
  readonly clock: Clock;
  /** Certificates to trust besides the system's, PEM. */
  readonly ca?: string[] | undefined;
}

/** Three agents of a pool may be tried, and the handshake comes on top. */
const CONNECT_WITHIN_MS = 30_000;
const IDLE_MS = 30_000;
const LOOK_EVERY_MS = 5_000;
const MAX_FREE = 4;
const MAX_SOCKETS = 64;

interface Route {
  readonly sessionId: string;
  readonly pool: string;
}

/** Through the hand agent that has this hand of the session. */
interface HandRoute {
  readonly sessionId: string;
  readonly handId: string;
}

interface Way extends Route {
  readonly http: HttpAgent;
  readonly https: HttpsAgent;
  usedMs: number;
}

type Created = (error: Error | null, socket?: Duplex) => void;
interface Wanted {
  readonly host?: string | null;
  readonly port?: number | string | null;
}

export class PrivateNetworks {
  private readonly deps: PrivateNetworksDeps;
  private readonly ways = new Map<string, Way>();
  private readonly stopLooking: () => void;

  constructor(deps: PrivateNetworksDeps) {
    this.deps = deps;
    this.stopLooking = deps.clock.every(LOOK_EVERY_MS, () => this.endIdle());
  }

  /**
   * As OutboundFetch, for `hand-agent://…` and `hand-agent+http://…`, and `https://…` with the request's pool. Rejects with an
   * OutboundRefusal, or the signal's reason.
   */
  async fetch(url: string, sessionId: string, request: OutboundRequest): Promise<Response> {
    const target = targetOf(url, request.pool);
    if (target === undefined)
      throw new OutboundRefusal("bad_url", "this is no URL of a server behind a hand agent");
    const way = this.wayOf({ sessionId, pool: target.pool });
    return createFetch(way)(target.url, request);
  }

  /** A connection by TLS where `isSecure`. Rejects with an OutboundRefusal, or the signal's reason. */
  async connect(
    route: Route | HandRoute,
    { host, port, isSecure }: { readonly host: string; readonly port: number; readonly isSecure: boolean },
    signal?: AbortSignal,
  ): Promise<Duplex> {
    const limit = new AbortController();
    const stop = this.deps.clock.after(CONNECT_WITHIN_MS, () =>
      limit.abort(new TendonError("DEADLINE_EXCEEDED", "it did not answer in time")),
    );
    const signals = signal === undefined ? limit.signal : AbortSignal.any([limit.signal, signal]);
    const name = host.includes(":") ? `[${host}]` : host;
    // Ends the tunnel's call while it is being opened; afterwards the stream does.
    const opening = new AbortController();
    const giveUp = () => opening.abort(signals.reason);
    signals.addEventListener("abort", giveUp, { once: true });
    try {
      signals.throwIfAborted();
      const call = this.deps.client.openTunnel({ signal: opening.signal });
      const stream = await openTunnel(call, { ...route, host: name, port });
      return isSecure ? await secureSocket(stream, host, this.deps.ca, signals) : likeSocket(stream);
    } catch (error) {
      signal?.throwIfAborted();
      const network = "pool" in route ? `pool "${route.pool}"` : "the hand's own agent";
      throw refusalOf(
        `${name}:${port} in the network of ${network}`,
        limit.signal.aborted ? limit.signal.reason : error,
      );
    } finally {
      stop();
      signals.removeEventListener("abort", giveUp);
    }
  }

  forgetSession(sessionId: string): void {
    // What runs for it ends by itself: it may be the request that closes its MCP session.
    for (const way of this.ways.values())
      if (way.sessionId === sessionId) way.usedMs = Number.NEGATIVE_INFINITY;
  }

  close(): void {
    this.stopLooking();
    for (const [key, way] of this.ways) this.end(key, way);
  }

  private wayOf(route: Route): Way {
    const key = `${route.sessionId} ${route.pool}`;
    const known = this.ways.get(key);
    const usedMs = this.deps.clock.monotonicMs();
    if (known !== undefined) {
      known.usedMs = usedMs;
      return known;
    }
    const pool = { keepAlive: true, maxFreeSockets: MAX_FREE, maxSockets: MAX_SOCKETS };
    const way: Way = { ...route, http: new HttpAgent(pool), https: new HttpsAgent(pool), usedMs };
    this.dialIn(way, way.http, false);
    this.dialIn(way, way.https, true);
    this.ways.set(key, way);
    return way;
  }

  private endIdle(): void {
    const sinceMs = this.deps.clock.monotonicMs() - IDLE_MS;
    for (const [key, way] of this.ways) {
      const inUse = [way.http, way.https].some(
        ({ sockets, requests }) => Object.keys(sockets).length > 0 || Object.keys(requests).length > 0,
      );
      if (!inUse && way.usedMs < sinceMs) this.end(key, way);
    }
  }

  private end(key: string, way: Way): void {
    this.ways.delete(key);
    way.http.destroy();
    way.https.destroy();
  }

  private dialIn(route: Route, agent: HttpAgent, isSecure: boolean): void {
    const createConnection = ({ host, port }: Wanted, created: Created): undefined => {
      const target = { host: (host ?? "").replace(/^\[|\]$/g, ""), port: Number(port), isSecure };
      this.connect(route, target).then(
        (socket) => created(null, socket),
        (error: Error) => created(error),
      );
    };
    // The type knows only agents that give a socket at once; the library itself takes both.
    Object.assign(agent, { createConnection });
  }
}

function targetOf(url: string, pool: string | undefined): { pool: string; url: string } | undefined {
  const named = parseHandAgentUrl(url);
  if (named !== undefined || pool === undefined) return named;
  return /^https:/i.test(url) ? { pool, url } : undefined;
}

/** What an HTTP agent asks of its sockets beside bytes. */
function likeSocket(stream: TunnelStream): Duplex {
  const nothing = () => stream;
  return Object.assign(stream, {
    setKeepAlive: nothing,
    setNoDelay: nothing,
    setTimeout: nothing,
    ref: nothing,
    unref: nothing,
  });
}

function refusalOf(where: string, error: unknown): OutboundRefusal {
  if (error instanceof OutboundRefusal) return error;
  if (isTendonError(error, "ROLE_NOT_ALLOWED")) {
    return new OutboundRefusal("address_not_allowed", `${where} was not reached: ${error.message}`);
  }
  // What breaks the handshake has a code; what the server of Tendon says is for people.
  const code = isTendonError(error) ? undefined : (error as NodeJS.ErrnoException).code;
  return notReached(where, code, messageOf(error));
}
