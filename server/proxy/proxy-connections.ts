/** The proxies that are connected to this replica, and what is known of those of the others. */
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { SessionTokens } from "../ports/session-tokens.ts";
import type { ReplicaStore } from "../store/replicas.ts";
import type { ProxyConnection } from "./proxy-connection.ts";

export interface ProxyConnectionsDeps {
  readonly replicas: Pick<ReplicaStore, "presence">;
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

export class ProxyConnections implements ProxyDirectory, Service {
  readonly name = "proxy connections";
  private readonly deps: ProxyConnectionsDeps;
  private readonly open = new Set<ProxyConnection>();
  private elsewhere: readonly string[] = [];
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
    this.welcome(connection, await this.deps.sessionTokens.publicKeys());
    for (const old of this.open) if (old.instanceId === connection.instanceId) old.end();
    this.open.add(connection);
  }

  /** False when a newer connection of the same proxy is there. */
  remove(connection: ProxyConnection): boolean {
    this.open.delete(connection);
    return ![...this.open].some(({ instanceId }) => instanceId === connection.instanceId);
  }

  /** In turns; this replica's own first, whose connections it can see. */
  anyUrl(): string {
    const urls = this.open.size > 0 ? [...this.open].map(({ url }) => url) : this.elsewhere;
    this.next += 1;
    return urls[this.next % urls.length] ?? "";
  }

  forgetSession(sessionId: string): void {
    for (const connection of this.open) connection.forgetSession(sessionId);
  }

  drain(graceMs: number): void {
    for (const connection of this.open) connection.drain(graceMs);
  }

  /** A replica that came later signs with a key that the proxies do not know yet. */
  private async tellNewKeys(): Promise<void> {
    const keys = await this.deps.sessionTokens.publicKeys();
    for (const connection of this.open) {
      if (connection.sessionTokenKeys !== keys) this.welcome(connection, keys);
    }
  }

  private welcome(connection: ProxyConnection, sessionTokenKeys: string): void {
    connection.welcome({
      replicaId: this.deps.replicaId,
      heartbeatEvery: durationFromMs(HEARTBEAT_EVERY_MS),
      heartbeatTimeout: durationFromMs(HEARTBEAT_TIMEOUT_MS),
      sessionTokenKeys,
    });
  }

  private async look(): Promise<void> {
    try {
      const { proxies } = await this.deps.replicas.presence(undefined);
      this.elsewhere = proxies.map(({ url }) => url);
      if (this.open.size > 0) await this.tellNewKeys();
    } catch (error) {
      this.deps.log.debug({ error: messageOf(error) }, "the other replicas' proxies could not be read");
    }
  }
}
