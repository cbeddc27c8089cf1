/** A server in the test's own process, on a free port, as `tendon-server` runs it. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { DescService } from "@bufbuild/protobuf";
import type { Clock } from "../../kit/clock.ts";
import { type Connection, dial } from "../../kit/dial/dial.ts";
import { createLogger, type LogLevel } from "../../kit/log.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { readSettings } from "../../kit/settings/settings.ts";
import { type ServerConfig, serverSettings } from "../../server/config.ts";
import { Server } from "../../server/server.ts";
import { freePort } from "./free-port.ts";

export interface TestServerOptions {
  /** Of a test database; several servers may share one. Not set: an embedded Postgres in the data directory. */
  databaseUrl?: string;
  /** A folder that stays; not set: one of its own, removed at the end. */
  dataDir?: string;
  /** Further settings, as a user would write them. */
  settings?: Readonly<Record<string, string>>;
  /** Whether other replicas reach it: at its own port, or at this URL. */
  peers?: boolean | { port: number; url: string };
  /** With TLS: the certificates that `client` trusts. */
  caFile?: string;
  logLevel?: LogLevel;
  clock?: Clock;
  recheckEveryMs?: number;
  servesVariables?: boolean;
  webhookLeaseMs?: number;
  replaceAdminKey?: boolean;
}

export interface TestServer {
  readonly server: Server;
  readonly port: number;
  readonly url: string;
  readonly dataDir: string;
  /** An installation-wide admin's key; empty on a server that came to a database which had one. */
  readonly adminKey: string;
  /** The key of the machine's own harness or proxy, or its own among replicas. */
  localKey(role: "harness" | "proxy" | "peer"): Promise<string>;
  /** A client with this key (the admin's unless told otherwise; "" sends none), over a connection that `stop` closes. */
  client<S extends DescService>(service: S, key?: string): Client<S>;
  fetch(path: string, init?: RequestInit): Promise<Response>;
  /** Ends clients and server, and removes the data directory if it is its own. May be called twice. */
  stop(): Promise<void>;
}

/** Settings as the program would read them. */
export function serverConfig(environment: Readonly<Record<string, string>>): ServerConfig {
  return readSettings(serverSettings, environment, { knownElsewhere: [] }).values;
}

export async function startServer(options: TestServerOptions = {}): Promise<TestServer> {
  const dataDir = options.dataDir ?? (await mkdtemp(join(tmpdir(), "tendon-server-")));
  const removeDataDir = async () => {
    if (options.dataDir === undefined) await rm(dataDir, { recursive: true, force: true });
  };
  const {
    databaseUrl: _url,
    dataDir: _dir,
    settings: _settings,
    peers = false,
    caFile: _caFile,
    logLevel = "error",
    ...rest
  } = options;
  let config: ServerConfig;
  let server: Server;
  try {
    const port = peers === true ? await freePort() : peers === false ? 0 : peers.port;
    const peerUrl = peers === true ? `http://127.0.0.1:${port}` : peers === false ? undefined : peers.url;
    config = serverConfig({
      TENDON_PORT: String(port),
      ...(peerUrl === undefined ? {} : { TENDON_PEER_URL: peerUrl }),
      TENDON_DATA_DIR: dataDir,
      TENDON_DATABASE_POOL: "5",
      ...(options.databaseUrl === undefined ? {} : { TENDON_DATABASE_URL: options.databaseUrl }),
      ...options.settings,
    });
    server = new Server({ ...rest, config, log: createLogger("test", logLevel) });
    await server.start();
  } catch (error) {
    await removeDataDir();
    throw error;
  }
  const scheme = config.TENDON_TLS_CERT === undefined ? "http" : "https";
  const url = `${scheme}://127.0.0.1:${server.port}`;
  const readKey = async (name: string) => (await readFile(join(dataDir, `${name}.key`), "utf8")).trim();
  const adminKey = config.TENDON_ADMIN_KEY ?? (await readKey("admin").catch(() => ""));
  const connections = new Map<string, Connection>();
  const connect = (key: string) => {
    const made = dial({ url, caFile: options.caFile, token: () => key, proxy: {} });
    connections.set(key, made);
    return made;
  };
  return {
    server,
    port: server.port,
    url,
    dataDir,
    adminKey,
    localKey: readKey,
    client: (service, key = adminKey) => (connections.get(key) ?? connect(key)).client(service),
    fetch: (path, init) => fetch(`${url}${path}`, init),
    async stop() {
      for (const connection of connections.values()) connection.close();
      connections.clear();
      await server.stop();
      await removeDataDir();
    },
  };
}
