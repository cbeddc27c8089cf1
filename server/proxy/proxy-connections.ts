/** The proxies that are connected to this replica, and what is known of those of the others. */
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import type { Clock } from "../../kit/clock.ts";
import { messageOf, TendonError } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import type { PublicSealingKey } from "../../kit/vault/sealed-content.ts";
import type { ProxyAnswer, SealingKey } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { Peers } from "../ports/peers.ts";
import type { AskOptions, ProxyAsk, ProxyDirectory, ReachableProxy } from "../ports/proxy-directory.ts";
import type { SessionTokens } from "../ports/session-tokens.ts";
import type { AskedProxy, TunnelAsk } from "../ports/tunnels.ts";
import type { ReplicaStore } from "../store/replicas.ts";
import type { ProxyConnection } from "./proxy-connection.ts";
import { chooseKey } from "./sealing-key-choice.ts";

export interface ProxyConnectionsDeps {
  readonly replicas: Pick<ReplicaStore, "proxyUrls" | "sealingKeys">;
  /** The other replicas, some of which may have proxies. */
  readonly peers: () => Pick<Peers, "askProxy">;
  readonly sessionTokens: Pick<SessionTokens, "publicKeys">;
  readonly replicaId: string;
  readonly clock: Clock;
  readonly log: Logger;
}

/** How old the picture of the other replicas' proxies and keys may be. */
const LOOK_EVERY_MS = 3_000;

export const HEARTBEAT_EVERY_MS = 5_000;
/** Silence after which either side counts as gone; both find out within 30 s (H3). */
export const HEARTBEAT_TIMEOUT_MS = 15_000;

/** While no other is there, one that went is still told to harnesses so long: one that starts again is soon back there. */
const BACK_WITHIN_MS = 60_000;

const NO_PROXY: ReachableProxy = { url: "", web: { fetch: false, search: false } };

export class ProxyConnections implements ProxyDirectory, Service {
  readonly name = "proxy connections";
  private readonly deps: ProxyConnectionsDeps;
  private readonly open = new Set<ProxyConnection>();
  private elsewhere: readonly ReachableProxy[] = [];
  /** Other replicas to which proxies are connected. */
  private otherHolders: readonly string[] = [];
  /** The one that went last. */
  private gone: { readonly proxy: ReachableProxy; readonly atMs: number } | undefined;
  private ownUrls: readonly string[] = [];
  private sealingKeyId = "";
  private stopLooking: (() => void) | undefined;
  private next = 0;

  constructor(deps: ProxyConnectionsDeps) {
    this.deps = deps;
  }

  get size(): number {
    return this.open.size;
  }

  async start(): Promise<void> {
    await this.look();
    this.stopLooking = this.deps.clock.every(LOOK_EVERY_MS, () => void this.look());
  }

  async stop(): Promise<void> {
    this.stopLooking?.();
    for (const connection of this.open) connection.end();
  }

  /** Welcomes a proxy. A newer connection of the same proxy replaces an older one. */
  async add(connection: ProxyConnection): Promise<void> {
    const [keys] = await Promise.all([this.deps.sessionTokens.publicKeys(), this.readUrls()]);
    for (const old of this.open) if (old.instanceId === connection.instanceId) old.end();
    this.open.add(connection);
    // With it among them: a key that it does not have is none for the others from now on.
    this.sealingKeyId = (await this.currentSealingKey())?.keyId ?? "";
    this.welcome(connection, keys);
    this.tellWhatIsNew(keys);
  }

  remove(connection: ProxyConnection): void {
    const { url, web } = connection;
    if (this.open.delete(connection))
      this.gone = { proxy: { url, web }, atMs: this.deps.clock.monotonicMs() };
  }

  /** In turns; this replica's own first, whose connections it can see. */
  any(): ReachableProxy {
    const proxies = this.open.size > 0 ? [...this.open] : this.elsewhere;
    this.next += 1;
    const { url, web } = proxies[this.next % proxies.length] ?? this.lately() ?? NO_PROXY;
    return { url, web };
  }

  private lately(): ReachableProxy | undefined {
    const { clock } = this.deps;
    return this.gone && clock.monotonicMs() - this.gone.atMs < BACK_WITHIN_MS ? this.gone.proxy : undefined;
  }

  isAnyConnected(): boolean {
    return this.open.size > 0 || this.elsewhere.length > 0;
  }

  ask(ask: ProxyAsk, options: AskOptions): Promise<ProxyAnswer> {
    return this.serving(ask.value).length > 0 ? this.askHere(ask, options) : this.askElsewhere(ask, options);
  }

  /** NOT_CONFIGURED unless one is connected here that may serve the workspace: another's keys may be others. */
  async askHere(ask: ProxyAsk, options: AskOptions): Promise<ProxyAnswer> {
    const serving = this.serving(ask.value);
    this.next += 1;
    const connection = serving[this.next % serving.length];
    if (connection === undefined) throw notConnected();
    return connection.ask(ask, this.deps.clock, options);
  }

  askTunnelHere(ask: TunnelAsk): AskedProxy | undefined {
    const serving = this.serving(ask);
    this.next += 1;
    return serving[this.next % serving.length]?.askTunnel(ask, this.deps.clock);
  }

  /** Those of this replica whose keys are for the workspace. */
  private serving({ workspaceId }: { readonly workspaceId: string }): ProxyConnection[] {
    return [...this.open].filter(({ serves }) => serves === undefined || serves === workspaceId);
  }

  holders(): readonly string[] {
    return this.otherHolders;
  }

  sealingKeys(): readonly (readonly SealingKey[])[] {
    return [...this.open].map(({ sealingKeys }) => sealingKeys);
  }

  async currentSealingKey(): Promise<PublicSealingKey | undefined> {
    return chooseKey({ here: this.sealingKeys(), ...(await this.deps.replicas.sealingKeys()) });
  }

  forgetSession(sessionId: string): void {
    for (const connection of this.open) connection.forgetSession(sessionId);
  }

  drain(graceMs: number): void {
    for (const connection of this.open) connection.drain(graceMs);
  }

  /** A replica that came later signs with a key that the proxies do not know yet; proxies come and go. */
  private async tellNews(): Promise<void> {
    const keys = await this.deps.sessionTokens.publicKeys();
    this.sealingKeyId = (await this.currentSealingKey())?.keyId ?? "";
    this.tellWhatIsNew(keys);
  }

  private tellWhatIsNew(keys: string): void {
    for (const connection of this.open) {
      const { sessionTokenKeys, ownUrls, sealingKeyId } = connection;
      const isNew =
        sessionTokenKeys !== keys || ownUrls !== this.ownUrls.join(" ") || sealingKeyId !== this.sealingKeyId;
      if (isNew) this.welcome(connection, keys);
    }
  }

  private async askElsewhere(ask: ProxyAsk, options: AskOptions): Promise<ProxyAnswer> {
    for (const replicaId of this.otherHolders) {
      try {
        return await this.deps.peers().askProxy({ replicaId, ask, ...options });
      } catch (error) {
        // It may have lost its proxy since it was looked at; the next may have one.
        if (!(error instanceof TendonError && error.reason === "NOT_CONFIGURED")) throw error;
      }
    }
    throw notConnected();
  }

  private async readUrls(): Promise<void> {
    const { replicaId, replicas } = this.deps;
    const found = await replicas.proxyUrls();
    this.elsewhere = found.proxies;
    this.otherHolders = [...new Set(found.proxies.map((proxy) => proxy.replicaId))].filter(
      (id) => id !== replicaId,
    );
    this.ownUrls = [...new Set([...found.proxies.map(({ url }) => url), ...found.peers])].sort();
  }

  private welcome(connection: ProxyConnection, sessionTokenKeys: string): void {
    connection.welcome({
      replicaId: this.deps.replicaId,
      heartbeatEvery: durationFromMs(HEARTBEAT_EVERY_MS),
      heartbeatTimeout: durationFromMs(HEARTBEAT_TIMEOUT_MS),
      sessionTokenKeys,
      ownUrls: [...this.ownUrls],
      sealingKeyId: this.sealingKeyId,
    });
  }

  private async look(): Promise<void> {
    try {
      await this.readUrls();
      if (this.open.size > 0) await this.tellNews();
    } catch (error) {
      this.deps.log.debug({ error: messageOf(error) }, "the other replicas' proxies could not be read");
    }
  }
}

function notConnected(): TendonError {
  return new TendonError("NOT_CONFIGURED", "no proxy is connected; start one with: tendon mcp-proxy", {
    part: "proxy",
  });
}
