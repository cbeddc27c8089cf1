/**
 * The proxy's way out: connections to addresses that were checked. A name is resolved here, once for each connection, and what
 * was checked is what is dialled: a name that changes its mind in between gains nothing. Behind a corporate proxy that proxy
 * resolves the name, and its rules are what guards the addresses.
 */
import { Agent as HttpAgent } from "node:http";
import { Agent as HttpsAgent } from "node:https";
import { isIP, isIPv6, type Socket } from "node:net";
import type { Clock } from "../../kit/clock.ts";
import { type ProxyRoute, type ProxySettings, proxyFor } from "../../kit/dial/proxy-rules.ts";
import { connectThroughProxy } from "../../kit/network/connect-proxy.ts";
import { dialFirst } from "../../kit/network/dial-first.ts";
import { parseHost } from "../../kit/network/host-name.ts";
import { NameError, type NameResolver } from "../../kit/network/name-resolver.ts";
import { notReached, OutboundRefusal } from "./refusal.ts";
import { type Destination, isPublic, type OutboundRules } from "./rules.ts";
import { secureSocket } from "./secure-socket.ts";

export interface OutboundOptions {
  readonly rules: OutboundRules;
  readonly resolver: NameResolver;
  readonly clock: Clock;
  /** The corporate proxy of this machine's network. */
  readonly proxy?: ProxySettings | undefined;
  /** Certificates to trust besides the system's, PEM. */
  readonly ca?: string[] | undefined;
}

const CONNECT_WITHIN_MS = 10_000;
/** Connections to one origin that wait for more work. */
const MAX_FREE = 8;
/** To one origin. Whoever asks has bounds of its own: one here, for all sessions, would let a few hold up the others. */
const MAX_SOCKETS = 10_000;

type Created = (error: Error | null, socket?: Socket) => void;
interface Wanted {
  readonly host?: string | null;
  readonly port?: number | string | null;
}

export class Outbound {
  readonly http: HttpAgent;
  readonly https: HttpsAgent;
  private readonly options: OutboundOptions;

  constructor(options: OutboundOptions) {
    this.options = options;
    const pool = { keepAlive: true, maxFreeSockets: MAX_FREE, maxSockets: MAX_SOCKETS };
    this.http = new HttpAgent(pool);
    this.https = new HttpsAgent(pool);
    this.dialIn(this.http, false);
    this.dialIn(this.https, true);
  }

  /** A connected socket, with TLS where the destination has it. Rejects with an OutboundRefusal. */
  async connect(destination: Destination, signal?: AbortSignal): Promise<Socket> {
    const { clock, proxy = {} } = this.options;
    const route = proxyFor(destination.host, destination.port, proxy);
    const addresses =
      route === undefined ? await this.permitted(destination) : await this.routed(destination);
    const limit = new AbortController();
    const stop = clock.after(CONNECT_WITHIN_MS, () => limit.abort(new Error("it did not answer in time")));
    const signals = signal === undefined ? limit.signal : AbortSignal.any([limit.signal, signal]);
    try {
      const socket =
        route === undefined
          ? await dialFirst(addresses, destination.port, clock, signals)
          : await this.connectBy(route, destination, signals);
      // Half-open connections are of no use to HTTP.
      socket.allowHalfOpen = false;
      return destination.isSecure
        ? await secureSocket(socket, destination.host, this.options.ca, signals)
        : socket;
    } catch (error) {
      signal?.throwIfAborted();
      throw unreachable(destination, error);
    } finally {
      stop();
    }
  }

  /** What can be told of a destination without asking for names. Throws an OutboundRefusal. */
  check(destination: Destination): void {
    const addresses = literalAddresses(destination.host);
    if (addresses === undefined) this.options.rules.checkDenied(destination);
    else this.options.rules.permitted(destination, addresses);
  }

  /** Whether this machine knows a public address of the host. What it then dials is judged by `connect`. */
  async hasPublicAddress({ host }: Pick<Destination, "host">): Promise<boolean> {
    try {
      return (await this.resolve(host)).some((address) => isPublic(address));
    } catch (error) {
      if (error instanceof OutboundRefusal) return false;
      throw error;
    }
  }

  /**
   * Connections by TLS for one user alone, who ends them by `destroy`: whoever holds all of them, by requests that get no
   * further, holds up nobody else.
   */
  ownHttps(maxSockets: number): HttpsAgent {
    const agent = new HttpsAgent({ keepAlive: true, maxFreeSockets: 1, maxSockets });
    this.dialIn(agent, true);
    return agent;
  }

  /** Ends idle connections, and open ones too. */
  close(): void {
    this.http.destroy();
    this.https.destroy();
  }

  private async permitted(destination: Destination): Promise<string[]> {
    return this.options.rules.permitted(destination, await this.resolve(destination.host));
  }

  /** Behind a corporate proxy that proxy resolves the name. What this machine knows of it is judged all the same. */
  private async routed(destination: Destination): Promise<string[]> {
    try {
      return await this.permitted(destination);
    } catch (error) {
      if (!(error instanceof OutboundRefusal) || error.reason !== "not_resolved") throw error;
      this.options.rules.checkName(destination);
      return [];
    }
  }

  private async connectBy(
    route: ProxyRoute,
    { host, port }: Destination,
    signal: AbortSignal,
  ): Promise<Socket> {
    const parsed = parseHost(isIPv6(host) ? `[${host}]` : host);
    if (parsed === undefined) throw new OutboundRefusal("bad_url", "the URL names no host");
    const socket = await dialFirst([route.host], route.port, this.options.clock, signal);
    const through = await connectThroughProxy(socket, route, { host: parsed, port }, signal);
    // It comes paused, and who speaks HTTP over it waits for nobody to let it go on.
    return through.resume();
  }

  private async resolve(host: string): Promise<string[]> {
    const addresses = literalAddresses(host);
    if (addresses !== undefined) return addresses;
    try {
      return await this.options.resolver.resolve(host.toLowerCase().replace(/\.$/, ""));
    } catch (error) {
      if (error instanceof NameError) throw new OutboundRefusal("not_resolved", error.message);
      throw error;
    }
  }

  /** An agent asks for its connections here. */
  private dialIn(agent: HttpAgent, isSecure: boolean): void {
    const createConnection = ({ host, port }: Wanted, created: Created): undefined => {
      const destination = { host: (host ?? "").replace(/^\[|\]$/g, ""), port: Number(port), isSecure };
      this.connect(destination).then(
        (socket) => created(null, socket),
        (error: Error) => created(error),
      );
    };
    // The type knows only agents that give a socket at once; the library itself takes both.
    Object.assign(agent, { createConnection });
  }
}

/** Of a host that says itself where it is. */
function literalAddresses(host: string): string[] | undefined {
  if (isIP(host) !== 0) return [host];
  const name = host.toLowerCase().replace(/\.$/, "");
  return name === "localhost" || name.endsWith(".localhost") ? ["127.0.0.1", "::1"] : undefined;
}

/** A certificate that is not trusted says so; nothing else of the far side's is repeated. */
function unreachable({ host, port }: Destination, error: unknown): Error {
  if (error instanceof OutboundRefusal) return error;
  const { code, message } = error as NodeJS.ErrnoException;
  return notReached(`${host}:${port}`, code, message);
}
