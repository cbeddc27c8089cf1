/** HarnessService: the Work stream that every harness holds. */
import { create } from "@bufbuild/protobuf";
import { durationFromMs, durationMs, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { invalidField, messageOf, TendonError } from "../../kit/errors.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { SilenceWatch } from "../../kit/silence.ts";
import {
  type HarnessHello,
  type HarnessService,
  HarnessWelcomeSchema,
  LeaseLostSchema,
  LeasesRenewedSchema,
  type ReleaseLease,
  ReleaseReason,
  ServerDrainingSchema,
  type WorkRequest,
} from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { principalOf } from "../ports/principal.ts";
import { PresenceRows } from "../store/presence-rows.ts";
import type { ReplicaStore } from "../store/replicas.ts";
import type { Dispatcher, DispatcherDeps } from "./dispatcher.ts";
import { HarnessConnection } from "./harness-connection.ts";
import { HEARTBEAT_EVERY_MS, HEARTBEAT_TIMEOUT_MS, PROTOCOL_VERSION, RENEWALS_PER_TTL } from "./limits.ts";

/** A session token is issued anew with a renewal once it is this old; it lasts 15 minutes. */
const TOKEN_RENEW_AFTER_MS = 10 * 60_000;

export interface HarnessServiceDeps extends DispatcherDeps {
  readonly dispatcher: Dispatcher;
  readonly replicas: ReplicaStore;
}

export class HarnessServiceHandler implements ServiceImplementation<typeof HarnessService> {
  private readonly deps: HarnessServiceDeps;
  private readonly open = new Set<HarnessConnection>();
  private readonly presence = new PresenceRows();
  private draining = false;

  constructor(deps: HarnessServiceDeps) {
    this.deps = deps;
  }

  async *work(requests: AsyncIterable<WorkRequest>, context: RpcContext) {
    if (this.draining) throw new TendonError("DRAINING", "this server is stopping; connect again");
    const iterator = requests[Symbol.asyncIterator]();
    const first = await iterator.next();
    if (first.done || first.value.kind.case !== "hello")
      throw invalidField("kind", "the first message must be hello");
    const connection = this.meet(first.value.kind.value, context);
    let stopWatching = () => {};
    try {
      await this.welcome(connection);
      // Both directions end together: the reader's end closes the outbox, whose end ends this generator.
      void this.readAll(connection, iterator).then(
        () => connection.outbox.end(),
        (error) => connection.outbox.end(error),
      );
      stopWatching = this.watchSilence(connection);
      // A generator that waits cannot be told to return: the outbox has to end first.
      context.signal.addEventListener("abort", () => connection.outbox.end(), { once: true });
      if (context.signal.aborted) connection.outbox.end();
      yield* connection.outbox;
    } finally {
      stopWatching();
      connection.outbox.end();
      this.open.delete(connection);
      const how = connection.leaving ? "goodbye" : this.draining ? "draining" : "broken";
      this.deps.dispatcher.leave(connection, how);
      await this.gone(connection).catch((error: unknown) => this.warn(error, "could not remove a harness"));
    }
  }

  /** Tells every harness to attach elsewhere, and ends the streams. */
  async drain(graceMs: number): Promise<void> {
    this.draining = true;
    for (const connection of this.open) {
      connection.send({
        case: "draining",
        value: create(ServerDrainingSchema, { grace: durationFromMs(graceMs) }),
      });
      connection.outbox.end();
    }
  }

  private meet(hello: HarnessHello, context: RpcContext): HarnessConnection {
    if (hello.protocolVersion !== PROTOCOL_VERSION) {
      throw new TendonError(
        "PROTOCOL_VERSION_UNSUPPORTED",
        `this server speaks version ${PROTOCOL_VERSION} of the harness protocol, the harness version ${hello.protocolVersion}`,
        { supported: String(PROTOCOL_VERSION) },
      );
    }
    const principal = principalOf(context);
    const workspaceId = principal.kind === "harness" ? principal.workspaceId : undefined;
    return new HarnessConnection(hello, workspaceId, this.deps.clock.monotonicMs());
  }

  private async welcome(connection: HarnessConnection): Promise<void> {
    const { dispatcher, leaseTtlMs, replicas, replicaId } = this.deps;
    const { instanceId, build, loops, capacity, modelSource } = connection.hello;
    await this.presence.came(instanceId, connection, () =>
      replicas.harnessConnected({ replicaId, instanceId, build, loops, capacity, modelSource }),
    );
    const attached = await this.attach(connection);
    connection.send({
      case: "welcome",
      value: create(HarnessWelcomeSchema, {
        replicaId,
        leaseTtl: durationFromMs(leaseTtlMs),
        renewEvery: durationFromMs(Math.floor(leaseTtlMs / RENEWALS_PER_TTL)),
        heartbeatEvery: durationFromMs(HEARTBEAT_EVERY_MS),
        heartbeatTimeout: durationFromMs(HEARTBEAT_TIMEOUT_MS),
        attachedLeaseIds: attached,
      }),
    });
    this.open.add(connection);
    dispatcher.join(connection);
  }

  private gone(connection: HarnessConnection): Promise<void> {
    const { instanceId } = connection;
    const { replicas, replicaId } = this.deps;
    return this.presence.gone(instanceId, connection, () => replicas.harnessGone(instanceId, replicaId));
  }

  /** E2: the same harness instance goes on under the same epoch, on whichever replica it finds. */
  private async attach(connection: HarnessConnection): Promise<string[]> {
    const { leases, dispatcher, replicaId, leaseTtlMs, sessionLog } = this.deps;
    const attached: string[] = [];
    for (const { sessionId, lease, position } of connection.hello.attach) {
      if (lease === undefined) continue;
      const acquired = await leases.reattach({
        sessionId,
        leaseId: lease.leaseId,
        epoch: lease.epoch,
        harnessId: connection.instanceId,
        replicaId,
        ttlMs: leaseTtlMs,
      });
      if (acquired === undefined) {
        connection.send({
          case: "leaseLost",
          value: create(LeaseLostSchema, {
            leaseId: lease.leaseId,
            detail: "it ended while the harness was away",
          }),
        });
        continue;
      }
      attached.push(lease.leaseId);
      const held = dispatcher.hold(connection, acquired, position);
      const { head } = await sessionLog.readTail({ sessionId, maxBytes: 1 });
      held.advanced({ sessionId, head, hasWork: false });
    }
    return attached;
  }

  private async readAll(connection: HarnessConnection, requests: AsyncIterator<WorkRequest>): Promise<void> {
    for (let next = await requests.next(); !next.done; next = await requests.next()) {
      connection.lastHeardMs = this.deps.clock.monotonicMs();
      await this.take(connection, next.value);
    }
  }

  private async take(connection: HarnessConnection, request: WorkRequest): Promise<void> {
    const { kind } = request;
    if (kind.case === "heartbeat") {
      connection.heard(kind.value.sequence);
      return this.deps.replicas.harnessSeen(connection.instanceId, this.deps.replicaId, connection.sessions);
    }
    if (kind.case === "renew") return this.renew(connection, kind.value.leaseIds);
    if (kind.case === "release") {
      // Somebody may hold the session's row for long; the harness's other sessions do not wait for that.
      this.release(connection, kind.value).catch((error: unknown) =>
        this.warn(error, "a lease was not released; it runs out by itself"),
      );
      return;
    }
    if (kind.case === "goodbye") {
      connection.leaving = true;
      return;
    }
    if (kind.case === "previews") {
      const { lease, sessionId, previews } = kind.value;
      const held = lease && connection.held.get(lease.leaseId);
      if (held?.sessionId === sessionId) this.deps.sessionLog.publishPreviews(sessionId, previews);
      return;
    }
    throw invalidField("kind", "hello comes once, as the first message");
  }

  private async renew(connection: HarnessConnection, leaseIds: readonly string[]): Promise<void> {
    const { leases, leaseTtlMs, clock, tokens } = this.deps;
    const renewed = await leases.renew({ leaseIds, harnessId: connection.instanceId, ttlMs: leaseTtlMs });
    const alive = new Set(renewed.leaseIds);
    for (const leaseId of leaseIds) {
      if (alive.has(leaseId)) continue;
      const session = connection.held.get(leaseId);
      if (session !== undefined) this.deps.dispatcher.lose(session.sessionId, "it was not renewed in time");
      else connection.lose(leaseId, "it was not renewed in time");
    }
    const sessionTokens: Record<string, string> = {};
    for (const leaseId of renewed.leaseIds) {
      const held = connection.held.get(leaseId);
      if (held === undefined || clock.nowMs() - held.tokenIssuedAtMs < TOKEN_RENEW_AFTER_MS) continue;
      sessionTokens[leaseId] = (await tokens.issue(held)).token;
      held.tokenIssuedAtMs = clock.nowMs();
    }
    const value = create(LeasesRenewedSchema, {
      leaseIds: renewed.leaseIds,
      expiresAt: timestampFromDate(renewed.expiresAt),
      sessionTokens,
    });
    connection.send({ case: "renewed", value });
  }

  private async release(connection: HarnessConnection, release: ReleaseLease): Promise<void> {
    const rested = release.reason === ReleaseReason.IDLE || release.reason === ReleaseReason.FAILED;
    const retry = release.reason === ReleaseReason.RETRY_LATER;
    const lease = { leaseId: release.leaseId, othersFirst: retry && release.lacksRoom };
    await this.deps.dispatcher.release(connection, lease, {
      restedPosition: rested ? release.position : undefined,
      retryAfterMs: retry ? Math.max(0, release.retryAfter ? durationMs(release.retryAfter) : 0) : undefined,
      answersDueAfterMs:
        rested && release.answersDueAfter ? Math.max(0, durationMs(release.answersDueAfter)) : undefined,
    });
  }

  /** Sends heartbeats, and ends a connection that has been silent for too long (H3). */
  private watchSilence(connection: HarnessConnection): () => void {
    const { clock } = this.deps;
    const silence = new SilenceWatch(HEARTBEAT_TIMEOUT_MS);
    return clock.every(HEARTBEAT_EVERY_MS, () => {
      if (silence.isOver(clock.monotonicMs() - connection.lastHeardMs)) {
        connection.outbox.end(
          new TendonError("UNAVAILABLE", "nothing was heard from the harness for too long"),
        );
        return;
      }
      connection.beat();
    });
  }

  private warn(error: unknown, what: string): void {
    this.deps.log.warn({ error: messageOf(error) }, what);
  }
}
