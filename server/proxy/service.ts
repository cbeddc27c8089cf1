/** ProxyService: the stream that every proxy holds open. */
import type { Clock } from "../../kit/clock.ts";
import { invalidField, messageOf, TendonError } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { SilenceWatch } from "../../kit/silence.ts";
import type {
  OpenTunnelRequest,
  ProxyHello,
  ProxyService,
  ProxyServiceConnectRequest,
} from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import { principalOf, scopeOf } from "../ports/principal.ts";
import type { TunnelStreams } from "../ports/tunnels.ts";
import { PresenceRows } from "../store/presence-rows.ts";
import type { ReplicaStore } from "../store/replicas.ts";
import { ProxyConnection } from "./proxy-connection.ts";
import { HEARTBEAT_EVERY_MS, HEARTBEAT_TIMEOUT_MS, type ProxyConnections } from "./proxy-connections.ts";
import { checkHello } from "./rules.ts";

export interface ProxyDeps {
  readonly connections: ProxyConnections;
  readonly replicas: Pick<ReplicaStore, "proxyConnected" | "proxyGone">;
  readonly tunnels: () => Pick<TunnelStreams, "fromProxy" | "proxyGone">;
  readonly replicaId: string;
  readonly clock: Clock;
  readonly log: Logger;
}

export class ProxyServiceHandler implements ServiceImplementation<typeof ProxyService> {
  private readonly deps: ProxyDeps;
  private readonly presence = new PresenceRows();
  private draining = false;

  constructor(deps: ProxyDeps) {
    this.deps = deps;
  }

  async *connect(requests: AsyncIterable<ProxyServiceConnectRequest>, context: RpcContext) {
    if (this.draining) throw new TendonError("DRAINING", "this server is stopping; connect again");
    const iterator = requests[Symbol.asyncIterator]();
    const first = await iterator.next();
    if (first.done || first.value.kind.case !== "hello") {
      throw invalidField("kind", "the first message must be hello");
    }
    const connection = await this.welcome(first.value.kind.value, scopeOf(principalOf(context)));
    const { clock, connections } = this.deps;
    // Both directions end together: the reader's end closes the outbox, whose end ends this generator.
    const reading = this.readAll(connection, iterator).then(
      () => connection.end(),
      (error: unknown) => connection.outbox.end(error),
    );
    const silence = new SilenceWatch(HEARTBEAT_TIMEOUT_MS);
    const stopBeating = clock.every(HEARTBEAT_EVERY_MS, () => connection.beat(clock.monotonicMs(), silence));
    context.signal.addEventListener("abort", () => connection.end(), { once: true });
    if (context.signal.aborted) connection.end();
    try {
      yield* connection.outbox;
    } finally {
      stopBeating();
      connection.end();
      connection.closed();
      if (!this.draining) this.deps.tunnels().proxyGone(connection.instanceId);
      void reading;
      connections.remove(connection);
      await this.gone(connection);
    }
  }

  openTunnel(requests: AsyncIterable<OpenTunnelRequest>, context: RpcContext) {
    return this.deps.tunnels().fromProxy(requests, context, principalOf(context));
  }

  /** No new proxies; those that are here are told to connect elsewhere. */
  drain(graceMs: number): void {
    this.draining = true;
    this.deps.connections.drain(graceMs);
  }

  private async welcome(hello: ProxyHello, serves: string | undefined): Promise<ProxyConnection> {
    checkHello(hello);
    const { clock, connections, replicas, replicaId } = this.deps;
    const { instanceId, build, url, sealingKeys } = hello;
    const connection = new ProxyConnection(hello, clock.monotonicMs(), serves);
    const { web } = connection;
    try {
      await this.presence.came(instanceId, connection, () =>
        replicas.proxyConnected({ instanceId, replicaId, build, url, sealingKeys, web }),
      );
      await connections.add(connection);
      return connection;
    } catch (error) {
      connections.remove(connection);
      await this.gone(connection);
      throw error;
    }
  }

  private async gone(connection: ProxyConnection): Promise<void> {
    const { instanceId } = connection;
    const { replicas, replicaId, log } = this.deps;
    await this.presence
      .gone(instanceId, connection, () => replicas.proxyGone(instanceId, replicaId))
      .catch((error: unknown) => log.warn({ error: messageOf(error) }, "could not remove a proxy"));
  }

  private async readAll(
    connection: ProxyConnection,
    requests: AsyncIterator<ProxyServiceConnectRequest>,
  ): Promise<void> {
    for (let next = await requests.next(); !next.done; next = await requests.next()) {
      const { kind } = next.value;
      if (kind.case === "hello") throw invalidField("kind", "hello comes once, as the first message");
      const sequence = kind.case === "heartbeat" ? kind.value.sequence : undefined;
      connection.heard(this.deps.clock.monotonicMs(), sequence);
      if (kind.case === "answer") connection.answered(kind.value);
    }
  }
}
