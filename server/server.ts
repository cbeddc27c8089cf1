/** The server from its database to its port, started and stopped as one. */
import { mkdir } from "node:fs/promises";
import { join, resolve } from "node:path";
import { BUILD } from "../kit/build.ts";
import { type Clock, systemClock } from "../kit/clock.ts";
import { newId } from "../kit/ids.ts";
import type { Service } from "../kit/lifecycle.ts";
import { type Listener, listen } from "../kit/listen/listen.ts";
import type { TlsFiles } from "../kit/listen/tls-files.ts";
import type { Logger } from "../kit/log.ts";
import { loadOrCreateKeyFile } from "../kit/sign/key-file.ts";
import { openTracing } from "../kit/trace-sdk.ts";
import { type App, createApp } from "./app.ts";
import type { ServerConfig } from "./config.ts";
import { type Database, openDatabase } from "./database.ts";
import { createHousekeeping } from "./housekeeping.ts";
import { ensureLocalKeys } from "./local-keys.ts";
import { Replica } from "./replica.ts";
import { publicKeySet } from "./rpc/session-tokens.ts";
import { startupFailure, withOwnLine } from "./startup-failure.ts";
import { createHintListener } from "./store/postgres/head-hints.ts";
import { createPostgresStore } from "./store/postgres/store.ts";
import type { Store } from "./store/store.ts";

export interface ServerOptions {
  readonly config: ServerConfig;
  readonly log: Logger;
  readonly clock?: Clock;
  readonly replaceAdminKey?: boolean;
  /** See AppDeps. */
  readonly recheckEveryMs?: number;
  /** See AppDeps. */
  readonly servesVariables?: boolean;
  /** See AppDeps. */
  readonly webhookLeaseMs?: number;
}

/** For the areas to end their streams; then for calls to finish. Together with the database's end below 10 s. */
const DRAIN_MS = 2_000;
const CLOSE_MS = 3_000;

export class Server implements Service {
  readonly name = "tendon-server";
  readonly replicaId = newId("replica");
  private readonly options: ServerOptions;
  private readonly clock: Clock;
  /** Undone in the opposite order; filled while the server starts. */
  private readonly undo: (() => Promise<void>)[] = [];
  private starting: Promise<void> | undefined;
  private stopping: Promise<void> | undefined;
  private readonly giveUp = new AbortController();
  private listener: Listener | undefined;
  private reportLost: (error: Error) => void = () => {};
  /** Resolves with the reason when the server cannot go on: its own Postgres is gone for good. */
  readonly lost = new Promise<Error>((resolve) => {
    this.reportLost = resolve;
  });

  constructor(options: ServerOptions) {
    this.options = options;
    this.clock = options.clock ?? systemClock;
  }

  /** The port it listens on. */
  get port(): number {
    if (this.listener === undefined) throw new Error("the server does not listen");
    return this.listener.port;
  }

  /** Throws a StartupError for what the operator can mend; nothing is left then. */
  start(): Promise<void> {
    this.starting ??= this.bringUp();
    return this.starting;
  }

  stop(): Promise<void> {
    this.stopping ??= this.shutDown();
    return this.stopping;
  }

  private async bringUp(): Promise<void> {
    const { config } = this.options;
    try {
      await this.open();
    } catch (error) {
      await this.unwind();
      throw startupFailure(error, config.TENDON_DATA_DIR);
    }
  }

  private async open(): Promise<void> {
    const { config, log } = this.options;
    const dataDir = resolve(config.TENDON_DATA_DIR);
    await mkdir(dataDir, { recursive: true, mode: 0o700 });
    const { signal } = this.giveUp;
    const tracing = await openTracing({ name: "tendon-server", instanceId: this.replicaId }, config, log);
    this.undo.push(() => tracing.stop());
    const database = await openDatabase({ ...config, TENDON_DATA_DIR: dataDir }, this.clock, log, signal);
    this.undo.push(() => database.close());
    void database.lost.then(this.reportLost);
    const store = createPostgresStore(database.pool);
    const signingKey = await withOwnLine(loadOrCreateKeyFile(join(dataDir, "session-token.key")));
    const { peerKey } = await withOwnLine(this.ensureKeys(store, dataDir));

    const { replicaId } = this;
    const peerUrl = config.TENDON_PEER_URL ?? "";
    const row = { replicaId, build: BUILD, peerUrl, publicKeys: publicKeySet(signingKey) };
    await this.run(new Replica({ row, replicas: store.replicas, clock: this.clock, log }));
    await this.run(createHousekeeping({ requestIds: store.requestIds, clock: this.clock, log }));
    const app = createApp({
      ...this.options,
      clock: this.clock,
      store,
      build: BUILD,
      replicaId,
      ...(await store.installation.ensure()),
      databaseKind: database.kind,
      hints: createHintListener({
        url: database.listenUrl,
        applicationName: "tendon server hints",
        log,
        clock: this.clock,
      }),
      destroyPeer: (peer) => void this.listener?.destroyPeer(peer),
      signingKey,
      peerKey,
      tracing,
    });
    measure(app, database);
    await this.run(app.parts);
    await this.listen(app);
    log.info({ host: this.listener!.host, port: this.port, replicaId }, "the server takes calls");
  }

  private async ensureKeys(store: Store, dataDir: string): Promise<{ peerKey: string | undefined }> {
    const { config, log, replaceAdminKey = false } = this.options;
    await store.installation.ensure();
    return ensureLocalKeys({
      dataDir,
      apiKeys: store.apiKeys,
      log,
      actor: `server ${this.replicaId}`,
      adminKey: config.TENDON_ADMIN_KEY,
      withPeerKey: config.TENDON_PEER_URL !== undefined,
      replaceAdminKey,
    });
  }

  private async listen(app: App): Promise<void> {
    const { config, log } = this.options;
    const listener = await withOwnLine(
      listen({
        host: config.TENDON_HOST,
        port: config.TENDON_PORT,
        tls: tlsFiles(config),
        h2c: config.TENDON_H2C,
        ...app.routes,
        log,
        clock: this.clock,
      }),
    );
    this.listener = listener;
    this.undo.push(async () => {
      app.setTakesCalls(false);
      await app.drain(DRAIN_MS);
      await listener.close({ graceMs: CLOSE_MS });
    });
    app.setTakesCalls(true);
  }

  private async run(service: Service): Promise<void> {
    this.undo.push(() => service.stop());
    await service.start();
  }

  private async shutDown(): Promise<void> {
    this.giveUp.abort();
    await this.starting?.catch(() => {});
    await this.unwind();
  }

  private async unwind(): Promise<void> {
    for (let step = this.undo.pop(); step; step = this.undo.pop()) await step();
  }
}

function tlsFiles(config: ServerConfig): TlsFiles | undefined {
  const { TENDON_TLS_CERT: certFile, TENDON_TLS_KEY: keyFile, TENDON_TLS_CLIENT_CA: clientCaFile } = config;
  return certFile === undefined || keyFile === undefined ? undefined : { certFile, keyFile, clientCaFile };
}

function measure({ metrics }: App, { pool }: Database): void {
  const help = "Database connections: all, idle, and callers that wait for one.";
  metrics.gauges("tendon_database_connections", help, "state", () => pool.counts());
}
