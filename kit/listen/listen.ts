/**
 * One TCP port for everything: gRPC on grpc-js, Connect and gRPC-Web and plain HTTP on Node's servers.
 *
 *   without TLS   the HTTP/2 preface → grpc-js (or Node's HTTP/2 server with h2c "mixed"); anything else → HTTP/1.1
 *   with TLS      ALPN offers only h2 → grpc-js; h2 and http/1.1 → Node's HTTP/2 server; else → HTTP/1.1
 *
 * Clients that speak gRPC alone offer only h2 and so reach the faster server; browsers and curl offer both and reach the one
 * that knows every protocol. Connections are accepted here and handed on as sockets.
 */
import http from "node:http";
import http2 from "node:http2";
import net, { type AddressInfo, type Socket } from "node:net";
import tls, { type SecureContextOptions, type TLSSocket } from "node:tls";
import { type Server as GrpcServer, ServerCredentials } from "@grpc/grpc-js";
import { type Clock, systemClock, within } from "../clock.ts";
import type { Logger } from "../log.ts";
import type { HttpHandler } from "../rpc/mount-connect.ts";
import { Connections, peerOf } from "./connections.ts";
import { type FirstBytes, readFirstBytes } from "./first-bytes.ts";
import { readTlsFiles, type TlsFiles, watchTlsFiles } from "./tls-files.ts";

export interface ListenOptions {
  /** An address of this machine, or a name for one; "::" and "0.0.0.0" mean all. */
  host: string;
  /** 0 takes a free one. */
  port: number;
  tls?: TlsFiles | undefined;
  /** Made by `createGrpcServer`; the listener shuts it down when it closes. */
  grpcServer: GrpcServer;
  /** Answers HTTP/1.1, and HTTP/2 that does not go to grpc-js; made by `mountConnect`. */
  httpHandler: HttpHandler;
  /** Where clear HTTP/2 goes: "auto" to grpc-js, "mixed" to Node's HTTP/2 server, which also answers Connect and plain HTTP. */
  h2c: "auto" | "mixed";
  log: Logger;
  clock?: Clock;
  /** More connections are dropped as they come. */
  maxConnections?: number;
  /** A connection that has not said what it wants by then is closed. */
  firstBytesMs?: number;
  /** How often the TLS files are looked at. */
  tlsPollMs?: number;
}

export interface Listener {
  /** Where it listens. */
  readonly host: string;
  readonly port: number;
  /** How many connections are open. */
  readonly connections: number;
  /**
   * Cuts the connection whose other end is `peer` (`RpcContext.peer`) at once; its calls end as cancelled. For the
   * program whose own heartbeat timed out: grpc-js does not reliably notice dead connections. False when there is none.
   */
  destroyPeer(peer: string): boolean;
  /** Takes no new connection or call, lets calls finish for `graceMs`, then cuts what is left. May be called twice. */
  close(options: { graceMs: number }): Promise<void>;
}

/** The port cannot be had; the message is one line for the operator. */
export class ListenError extends Error {
  override readonly name = "ListenError";
}

const DEFAULT_MAX_CONNECTIONS = 10_000;
const DEFAULT_FIRST_BYTES_MS = 10_000;
const DEFAULT_TLS_POLL_MS = 5_000;
/** For the headers of an HTTP/1.1 request to arrive. */
const HEADERS_TIMEOUT_MS = 20_000;
/** Longer than clients keep connections: one that ends just as a request comes loses it. */
const KEPT_OPEN_MS = 75_000;
/** The system probes connections that are silent for so long, so that idle dead ones end some day. */
const TCP_KEEPALIVE_MS = 60_000;
const MAX_STREAMS_PER_CONNECTION = 1_000;
/** Node's HTTP/2 server ends a session that buffers more, in MB. */
const MAX_SESSION_MEMORY_MB = 64;

/** Resolves once the port takes connections. Throws a ListenError, or an Error that names the TLS file. */
export async function listen(options: ListenOptions): Promise<Listener> {
  const secure = options.tls === undefined ? undefined : await readTlsFiles(options.tls);
  const listener = new PortListener(options, secure);
  try {
    await listener.open();
  } catch (error) {
    await listener.close({ graceMs: 0 });
    throw error;
  }
  return listener;
}

class PortListener implements Listener {
  private readonly options: ListenOptions;
  private readonly clock: Clock;
  private readonly server: net.Server;
  private readonly http1: http.Server;
  private readonly http2: http2.Http2Server;
  private readonly http2Sessions = new Set<http2.ServerHttp2Session>();
  private readonly injectGrpc: (socket: Socket) => void;
  private readonly sockets = new Connections();
  /** TLS clients that offered h2 and nothing else. */
  private readonly onlyHttp2 = new WeakSet<TLSSocket>();
  private readonly firstBytesMs: number;
  private stopWatching = () => {};
  private closing: Promise<void> | undefined;

  constructor(options: ListenOptions, secure: SecureContextOptions | undefined) {
    this.options = options;
    this.clock = options.clock ?? systemClock;
    this.firstBytesMs = options.firstBytesMs ?? DEFAULT_FIRST_BYTES_MS;
    const injector = options.grpcServer.createConnectionInjector(ServerCredentials.createInsecure());
    this.injectGrpc = (socket) => injector.injectConnection(socket);
    this.http1 = createHttp1Server(options.httpHandler);
    this.http2 = this.createHttp2Server();
    this.server = secure === undefined ? net.createServer() : this.createTlsServer(secure);
    this.server.maxConnections = options.maxConnections ?? DEFAULT_MAX_CONNECTIONS;
    this.server.on("drop", () => options.log.warn("a connection was dropped: too many are open"));
    this.server.on("connection", (socket: Socket) => this.accept(socket, secure === undefined));
  }

  async open(): Promise<void> {
    const { host, port } = this.options;
    await new Promise<void>((resolve, reject) => {
      const failed = (error: NodeJS.ErrnoException) => reject(listenError(host, port, error));
      this.server.once("error", failed);
      this.server.listen({ host, port }, () => {
        this.server.off("error", failed);
        resolve();
      });
    });
    // Accepting can fail for a moment when file descriptors run out; the server goes on.
    this.server.on("error", (error) => this.options.log.error({ err: error }, "the listener failed"));
  }

  get host(): string {
    return (this.server.address() as AddressInfo | null)?.address ?? this.options.host;
  }

  get port(): number {
    return (this.server.address() as AddressInfo | null)?.port ?? this.options.port;
  }

  get connections(): number {
    return this.sockets.size;
  }

  destroyPeer(peer: string): boolean {
    return this.sockets.destroyPeer(peer);
  }

  close({ graceMs }: { graceMs: number }): Promise<void> {
    this.closing ??= this.shutDown(graceMs);
    return this.closing;
  }

  private async shutDown(graceMs: number): Promise<void> {
    this.stopWatching();
    const serverClosed = new Promise<void>((resolve) => this.server.close(() => resolve()));
    const grpcDone = new Promise<void>((resolve) => this.options.grpcServer.tryShutdown(() => resolve()));
    for (const session of this.http2Sessions) session.close();
    this.http1.close();
    this.http1.closeIdleConnections();
    const drained = Promise.all([serverClosed, grpcDone, this.sockets.whenEmpty()]);
    try {
      await within(this.clock, graceMs, drained, () => new Error("grace is over"));
    } catch {
      this.options.grpcServer.forceShutdown();
      this.sockets.destroyAll();
      await Promise.all([serverClosed, this.sockets.whenEmpty()]);
    }
  }

  private accept(socket: Socket, clear: boolean): void {
    socket.on("error", () => {}); // the end of a connection is seen by whoever reads it
    socket.setNoDelay(true);
    socket.setKeepAlive(true, TCP_KEEPALIVE_MS);
    this.sockets.add(peerOf(socket), socket);
    if (clear) {
      readFirstBytes(socket, this.clock, this.firstBytesMs, (kind) => {
        this.route(socket, kind, this.options.h2c === "auto");
      });
    }
  }

  private acceptTls(socket: TLSSocket): void {
    socket.on("error", () => {});
    this.sockets.add(peerOf(socket), socket);
    readFirstBytes(socket, this.clock, this.firstBytesMs, (kind) => {
      this.route(socket, kind, socket.alpnProtocol !== "h2" || this.onlyHttp2.has(socket));
    });
  }

  private route(socket: Socket, kind: FirstBytes, grpc: boolean): void {
    if (this.closing !== undefined) {
      socket.destroy();
    } else if (kind === "other") {
      // A client may end its half of the connection after its request and still wait for the answer.
      socket.allowHalfOpen = true;
      this.http1.emit("connection", socket);
      socket.resume();
    } else if (grpc) {
      this.injectGrpc(socket);
    } else {
      this.http2.emit("connection", socket);
    }
  }

  private createHttp2Server(): http2.Http2Server {
    const server = http2.createServer({
      settings: { maxConcurrentStreams: MAX_STREAMS_PER_CONNECTION },
      maxSessionMemory: MAX_SESSION_MEMORY_MB,
    });
    server.on("request", this.options.httpHandler);
    server.on("session", (session) => {
      this.http2Sessions.add(session);
      session.once("close", () => this.http2Sessions.delete(session));
    });
    server.on("sessionError", (error) => this.options.log.debug({ err: error }, "an HTTP/2 session failed"));
    return server;
  }

  private createTlsServer(secure: SecureContextOptions): tls.Server {
    const { onlyHttp2 } = this;
    const files = this.options.tls!;
    const server = tls.createServer({
      ...secure,
      requestCert: files.clientCaFile !== undefined,
      rejectUnauthorized: files.clientCaFile !== undefined,
      handshakeTimeout: this.firstBytesMs,
      // Node calls this as a method of the socket; without that, the server that knows every protocol is taken.
      ALPNCallback(this: unknown, { protocols }): string | undefined {
        if (!protocols.includes("h2")) return protocols.includes("http/1.1") ? "http/1.1" : undefined;
        if (!protocols.includes("http/1.1") && this instanceof tls.TLSSocket) onlyHttp2.add(this);
        return "h2";
      },
    });
    server.on("secureConnection", (socket) => this.acceptTls(socket));
    server.on("tlsClientError", (error, socket) => {
      this.options.log.debug({ err: error }, "a TLS handshake failed");
      socket.destroy(); // Node leaves one that took too long open
    });
    this.stopWatching = watchTlsFiles(files, secure, {
      clock: this.clock,
      periodMs: this.options.tlsPollMs ?? DEFAULT_TLS_POLL_MS,
      log: this.options.log,
      changed: (changed) => server.setSecureContext(changed),
    });
    return server;
  }
}

function createHttp1Server(handler: HttpHandler): http.Server {
  const server = http.createServer(
    { headersTimeout: HEADERS_TIMEOUT_MS, keepAliveTimeout: KEPT_OPEN_MS },
    handler,
  );
  // The server never listens itself; this starts its check of slow requests.
  server.emit("listening");
  return server;
}

function listenError(host: string, port: number, error: NodeJS.ErrnoException): ListenError {
  const where = host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
  const causes: Record<string, string> = {
    EADDRINUSE: "another program uses this port",
    EACCES: "this port needs rights that the program does not have",
    EADDRNOTAVAIL: "this machine has no such address",
    ENOTFOUND: "no such host name",
  };
  const why = causes[error.code ?? ""] ?? error.message;
  return new ListenError(`cannot listen on ${where}: ${why}`, { cause: error });
}
