/** One hand's relay, from the socket that a program inside opens to the one that leads out. */
import http from "node:http";
import type { Server, Socket } from "node:net";
import type { Clock } from "../../kit/clock.ts";
import type { Logger } from "../../kit/log.ts";
import { parseHost, parseTarget, type Target } from "../../kit/network/host-name.ts";
import { TunnelStream } from "../../kit/tunnel/tunnel-stream.ts";
import { ByteSource } from "./byte-source.ts";
import {
  type ConnectionBudget,
  type ConnectionLimits,
  ConnectionTable,
  type Upstream,
} from "./connection-table.ts";
import { DenialLog } from "./denial-log.ts";
import { readFirstRequest } from "./git-request.ts";
import type { HandTunnels } from "./hand-tunnels.ts";
import type { HostPolicy } from "./host-policy.ts";
import { forwardRequest, MAX_HEADER_BYTES } from "./http-forward.ts";
import type { Outbound } from "./outbound.ts";
import { RelayRefusal, refusalResponse } from "./refusal.ts";
import type { Relay, RelayStats } from "./relay.ts";
import { readServerName } from "./server-name.ts";
import { acceptSocks, readSocksRequest, refuseSocks, SOCKS_VERSION } from "./socks5.ts";

export interface RelayServerOptions {
  readonly handId: string;
  readonly policy: HostPolicy;
  /** Not set: nothing goes to the proxy. */
  readonly tunnels?: HandTunnels;
  readonly outbound: Outbound;
  readonly budget: ConnectionBudget;
  readonly limits?: Partial<ConnectionLimits>;
  readonly clock: Clock;
  readonly log: Logger;
}

const DEFAULT_LIMITS: ConnectionLimits = {
  maxConnections: 256,
  requestMs: 60_000,
  idleMs: 600_000,
  halfOpenMs: 60_000,
};

export class RelayServer implements Relay {
  private readonly options: RelayServerOptions;
  private readonly table: ConnectionTable;
  private readonly denials: DenialLog;
  private readonly http: http.Server;
  private servers: readonly Server[] = [];
  private closing: Promise<void> | undefined;

  constructor(options: RelayServerOptions) {
    const { handId, clock, log, budget, limits } = options;
    this.options = options;
    this.table = new ConnectionTable({ clock, budget, limits: { ...DEFAULT_LIMITS, ...limits } });
    this.denials = new DenialLog({ handId, clock, log });
    this.http = http.createServer({ maxHeaderSize: MAX_HEADER_BYTES });
    this.http.on("connect", (request, socket: Socket, head) =>
      this.run(socket, this.tunnel(request, socket, head)),
    );
    this.http.on("request", (request, response) => this.run(request.socket, this.forward(request, response)));
    this.http.on("clientError", (_error, socket: Socket) => socket.destroy());
  }

  /** Takes the listening sockets over. */
  serve(servers: readonly Server[]): void {
    this.servers = servers;
    for (const server of servers) {
      // What is already sent is still read after one side has said that it is done.
      (server as Server & { allowHalfOpen: boolean }).allowHalfOpen = true;
      server.on("connection", (socket) => this.run(socket, this.accept(socket)));
      server.on("error", (err) =>
        this.options.log.warn({ err, hand: this.options.handId }, "the relay fails"),
      );
    }
  }

  stats(): RelayStats {
    return { ...this.table.stats(), denied: this.denials.counts() };
  }

  close(): Promise<void> {
    this.closing ??= this.end();
    return this.closing;
  }

  private async end(): Promise<void> {
    const closed = this.servers.map(
      (server) => new Promise<void>((resolve) => server.close(() => resolve())),
    );
    await this.table.close();
    await Promise.all(closed);
  }

  /** A bug in here ends one connection, not the agent. */
  private run(socket: Socket, work: Promise<void>): void {
    work.catch((err) => {
      this.options.log.error({ err, hand: this.options.handId }, "the relay failed on a connection");
      socket.destroy();
    });
  }

  private async accept(socket: Socket): Promise<void> {
    socket.on("error", () => {}); // `close` follows
    if (this.closing !== undefined) return void socket.destroy();
    if (this.table.add(socket) === undefined) {
      const refusal = new RelayRefusal("too_many_connections", "this hand has too many connections open");
      this.denials.note(refusal, undefined);
      socket.end(refusalResponse(refusal));
      socket.destroySoon();
      return;
    }
    socket.setNoDelay(true);
    const source = new ByteSource(socket);
    if (!(await source.fill(1))) return void socket.destroy();
    if (source.buffered[0] === SOCKS_VERSION) {
      source.release();
      return this.socks(socket);
    }
    if (this.options.tunnels?.takesGit) {
      const first = await readFirstRequest(source);
      if (first.kind === "gone") return void socket.destroy();
      if (first.kind === "git") return this.git(socket, source, first.target);
    }
    source.release();
    this.http.emit("connection", socket);
    socket.resume();
  }

  private async socks(socket: Socket): Promise<void> {
    const target = await readSocksRequest(socket);
    if (target === undefined) return;
    try {
      const upstream = await this.wayOut(target, socket);
      acceptSocks(socket);
      await this.joinAny(socket, upstream, target);
    } catch (error) {
      refuseSocks(socket, this.refusal(error, target, socket).reason);
      socket.resume(); // to hear of its end
    }
  }

  /** CONNECT. */
  private async tunnel(request: http.IncomingMessage, socket: Socket, head: Buffer): Promise<void> {
    const target = parseTarget(request.url ?? "");
    try {
      if (target === undefined) throw badTarget();
      const upstream = await this.wayOut(target, socket);
      socket.write("HTTP/1.1 200 Connection established\r\n\r\n");
      if (head.length > 0) socket.unshift(head);
      await this.joinAny(socket, upstream, target);
    } catch (error) {
      socket.end(refusalResponse(this.refusal(error, target, socket)));
      socket.resume(); // to hear of its end
    }
  }

  /** The whole connection is the proxy's: nothing of it is read here. */
  private async git(socket: Socket, source: ByteSource, target: Target | undefined): Promise<void> {
    const { tunnels } = this.options;
    try {
      if (target === undefined || tunnels === undefined) throw badTarget();
      const upstream = await this.reach(socket, (signal) => tunnels.connect("git", target, signal));
      const unsent = source.release();
      if (unsent.length > 0) upstream.write(unsent);
      splice(socket, upstream);
    } catch (error) {
      socket.end(refusalResponse(this.refusal(error, target, socket)));
      socket.resume(); // to hear of its end
    }
  }

  /** Everything else: a request for an http:// URL. */
  private async forward(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const [, authority = "", path = "/"] =
      /^http:\/\/([^/?#]*)([/?][^#]*)?(?:#.*)?$/i.exec(request.url ?? "") ?? [];
    const target = parseTarget(authority, 80);
    const { socket } = request;
    let upstream: Socket | undefined;
    try {
      if (target === undefined) throw badTarget();
      const to = target;
      upstream = await this.reach(socket, (signal) => this.dial(to, signal));
      const toServer = path.startsWith("?") ? `/${path}` : path;
      await forwardRequest({ request, response, upstream, host: authority, path: toServer });
    } catch (error) {
      const refusal = this.refusal(error, target, socket);
      if (response.headersSent || response.destroyed) return void response.destroy();
      const { code, text } = refusal.status;
      response.writeHead(code, text, {
        "content-type": "text/plain; charset=utf-8",
        "x-tendon-relay": refusal.reason,
        connection: "close",
      });
      response.end(`${refusal.message}\n`);
    } finally {
      upstream?.destroy();
    }
  }

  private wayOut(target: Target, client: Socket): Promise<Upstream> {
    const { tunnels } = this.options;
    return this.reach<Upstream>(client, (signal) =>
      tunnels?.takesEgress(target) ? tunnels.connect("egress", target, signal) : this.dial(target, signal),
    );
  }

  private dial(target: Target, signal: AbortSignal): Promise<Socket> {
    return this.options.outbound.connect(target, this.options.policy, signal);
  }

  /** What this connection leads to; it ends with it. */
  private async reach<T extends Upstream>(
    client: Socket,
    connect: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const connection = this.table.of(client);
    const gone = new AbortController();
    const onClose = () => gone.abort(new RelayRefusal("unreachable", "the program has gone"));
    client.once("close", onClose);
    try {
      const upstream = await connect(gone.signal);
      upstream.on("error", () => {
        // A tunnel that broke must not look like an answer that has ended.
        if (upstream instanceof TunnelStream) client.resetAndDestroy();
        else client.destroy();
      });
      if (connection === undefined || client.destroyed) {
        upstream.destroy();
        throw new RelayRefusal("unreachable", "the program has gone");
      }
      connection.add(upstream);
      return upstream;
    } finally {
      client.off("close", onClose);
    }
  }

  private async joinAny(client: Socket, upstream: Upstream, target: Target): Promise<void> {
    if (upstream instanceof TunnelStream) splice(client, upstream);
    else await this.join(client, upstream, target);
  }

  /** Carries bytes both ways until both sides are done. Each side waits for the other to read. */
  private async join(client: Socket, upstream: Socket, target: Target): Promise<void> {
    upstream.once("close", () => {
      // What had come from there is still written.
      if (!client.destroyed) client.destroySoon();
    });
    upstream.pipe(client);
    const { name, unsent } = await readServerName(client);
    if (client.destroyed) return;
    if (name !== undefined && !this.allowsServerName(name, target)) {
      this.denials.note(
        new RelayRefusal(
          "server_name_not_allowed",
          `TLS for ${name.slice(0, 253)} over a connection to another host`,
        ),
        target,
      );
      client.destroy();
      return;
    }
    if (unsent.length > 0) upstream.write(unsent);
    client.pipe(upstream);
  }

  /** An address that the environment names is allowed with all that it serves. */
  private allowsServerName(name: string, target: Target): boolean {
    const host = parseHost(name);
    return target.host.kind === "address" || (host !== undefined && this.options.policy.allows(host));
  }

  private refusal(error: unknown, target: Target | undefined, client: Socket): RelayRefusal {
    if (!(error instanceof RelayRefusal)) throw error;
    if (!client.destroyed) this.denials.note(error, target);
    return error;
  }
}

/** Each side's end is passed on to the other, which may go on. What breaks the tunnel has ended the client by then. */
function splice(client: Socket, tunnel: TunnelStream): void {
  tunnel.pipe(client);
  client.pipe(tunnel);
}

function badTarget(): RelayRefusal {
  return new RelayRefusal(
    "bad_request",
    "this is the way out of the sandbox, an HTTP proxy: it takes CONNECT host:port and http:// URLs, with a plain host name",
  );
}
