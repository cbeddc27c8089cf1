/**
 * The way out of a hand whose network is `limited`. The hand has a network namespace of its own with nothing but
 * loopback; in it the agent listens on 127.0.0.1 and ::1, port RELAY_PORT, as an HTTP and SOCKS5 proxy that lets
 * through what the environment names. See docs/networking.md.
 *
 * For drivers: start the hand's first process in a namespace without any way out and with `relayVariables()` in its
 * environment, then `Relays.start` with that process; do the same when a hand is recovered and when its sandbox was
 * started again. `Relay.close` when the hand ends; a namespace that goes away by itself needs it too. Sandboxes with a
 * network stack of their own (gVisor, where it does not pass calls on) do not see what listens in their namespace: refuse
 * `limited` there.
 */

/** The same in every namespace, so that it can stand in an environment before there is a namespace. */
export const RELAY_PORT = 7480;

/** As the agent sees it: a process in the namespace, or a file such as /var/run/docker/netns/… that stands for it. */
export type NetworkNamespace = { readonly pid: number } | { readonly path: string };

/** Traffic that goes to the proxy, which has what it needs: tokens of repositories, values of variables. */
export interface TunnelledTraffic {
  /** The hand that it is opened for. */
  readonly handId: string;
  /** Whether requests for `/git/<host>/<path>` are. */
  readonly git: boolean;
  /** Hosts whose CONNECT is: names, `*.example.com`, IPv4 addresses. */
  readonly egressHosts: readonly string[];
}

export interface RelayRequest {
  readonly handId: string;
  /** Must not be the agent's own; that is refused. */
  readonly namespace: NetworkNamespace;
  /** Host names, `*.example.com` for all subdomains, IPv4 addresses: an environment's `allowed_hosts`. */
  readonly allowedHosts: readonly string[];
  /** What is carried to the proxy instead; undefined for nothing. */
  readonly tunnels?: TunnelledTraffic | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface RelayStats {
  readonly open: number;
  readonly accepted: number;
  /** Requests that were refused, by reason. */
  readonly denied: Readonly<Record<string, number>>;
  readonly bytesOut: number;
  readonly bytesIn: number;
}

export interface Relay {
  stats(): RelayStats;
  /** Ends all of its connections; resolves when nothing of it is left. Idempotent. */
  close(): Promise<void>;
}

export type RelayProbe =
  | { readonly available: true }
  | { readonly available: false; readonly reason: string };

/** One for the whole agent; what drivers get. */
export interface Relays {
  /** Whether this agent can enter namespaces, found out by trying, once. Never rejects. */
  probe(): Promise<RelayProbe>;
  /** Resolves when programs in the namespace can connect. Rejects with `HandError`, with nothing left behind. */
  start(request: RelayRequest): Promise<Relay>;
}

/** What programs in the hand need to find the relay. What an environment sets itself may stand over it. */
export function relayVariables(): Record<string, string> {
  const proxy = `http://127.0.0.1:${RELAY_PORT}`;
  const here = "localhost,127.0.0.1,::1";
  return {
    HTTP_PROXY: proxy,
    http_proxy: proxy,
    HTTPS_PROXY: proxy,
    https_proxy: proxy,
    // Not socks5h://, which the relay speaks too: HTTP libraries without SOCKS refuse to start when they see it here.
    ALL_PROXY: proxy,
    all_proxy: proxy,
    NO_PROXY: here,
    no_proxy: here,
    // Node's own fetch looks at the variables above only if this is set (Node 24 and newer).
    NODE_USE_ENV_PROXY: "1",
  };
}
