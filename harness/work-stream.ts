/**
 * The stream over which sessions come to this harness, kept open across broken connections and servers that stop.
 *
 * W1 Leases live in `leases` from assignment to release or loss. Each new connection attaches them, so they go on under the
 *    same epoch (E2).
 * W2 A lease that is in doubt is ended here first: when the server says so, when it is missing from the welcome, or when
 *    no renewal was confirmed for its whole time.
 * W3 Whoever is silent for too long is hung up on (H3). A process that was held up itself listens once more before it judges.
 * W4 Nothing queues while no connection stands: releases are remembered, previews are dropped (L5).
 */
import { create } from "@bufbuild/protobuf";
import { durationFromMs, durationMs } from "@bufbuild/protobuf/wkt";
import { Backoff } from "../kit/backoff.ts";
import type { Clock } from "../kit/clock.ts";
import { messageOf, TendonError } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import type { BidiCall, Client } from "../kit/rpc/client.ts";
import type { Preview } from "../proto/gen/tendon/v1/event_pb.js";
import {
  type Assignment,
  type HarnessService,
  type HarnessWelcome,
  type LogAdvanced,
  ReleaseLeaseSchema,
  type ReleaseReason,
  type WorkRequest,
  type WorkRequestSchema,
  type WorkResponse,
  type WorkResponseSchema,
} from "../proto/gen/tendon/v1/harness_service_pb.js";
import { Lease } from "./lease.ts";

export interface WorkStreamOptions {
  readonly client: Client<typeof HarnessService>;
  readonly instanceId: string;
  readonly build: string;
  readonly loops: readonly string[];
  readonly capacity: number;
  readonly modelSource: string;
  readonly clock: Clock;
  readonly log: Logger;
  /** A session to run; must not throw. The lease ends or is given back with `release`. */
  assigned(assignment: Assignment, lease: Lease): void;
  /** Others have appended to the log of a held session. */
  advanced(lease: Lease, news: LogAdvanced): void;
}

export interface Release {
  readonly reason: ReleaseReason;
  readonly retryAfterMs?: number;
  /** With idle: when calls that wait for clients are to be answered for them. */
  readonly answersDueAfterMs?: number;
  /** With retry later: for want of room in this harness; others come first. */
  readonly lacksRoom?: boolean;
}

type WorkCall = BidiCall<typeof WorkRequestSchema, typeof WorkResponseSchema>;
type Message = WorkRequest["kind"];

/** How the server wants to be spoken to, in milliseconds. */
interface Rhythm {
  readonly leaseTtlMs: number;
  readonly renewEveryMs: number;
  readonly heartbeatEveryMs: number;
  readonly heartbeatTimeoutMs: number;
}

/** Holds until the first welcome says otherwise. */
const FIRST_RHYTHM: Rhythm = {
  leaseTtlMs: 30_000,
  renewEveryMs: 10_000,
  heartbeatEveryMs: 5_000,
  heartbeatTimeoutMs: 15_000,
};
const PROTOCOL_VERSION = 1;
const TICK_MS = 500;
/** The first try comes soon enough for the 300 ms in which a server keeps the leases of a broken stream. */
const REDIAL = { firstMs: 20, maxMs: 5_000, resetAfterMs: 10_000 };

export class WorkStream {
  private readonly options: WorkStreamOptions;
  private readonly leases = new Map<string, Lease>();
  private readonly unsentReleases = new Map<string, Message>();
  private readonly backoff: Backoff;
  private readonly stopping = new AbortController();
  private rhythm = FIRST_RHYTHM;
  private connection: Connection | undefined;
  private running: Promise<void> | undefined;
  private leaving = false;

  constructor(options: WorkStreamOptions) {
    this.options = options;
    this.backoff = new Backoff(options.clock, REDIAL);
  }

  /** Whether a server has welcomed this harness and the connection stands. */
  get isConnected(): boolean {
    return this.connection?.welcomed ?? false;
  }

  /** Leases that are held now. */
  get size(): number {
    return this.leases.size;
  }

  start(): void {
    this.running ??= this.run();
  }

  /** No more assignments. Those that come all the same are given back. */
  sayGoodbye(): void {
    if (this.leaving) return;
    this.leaving = true;
    this.connection?.send({ case: "goodbye", value: { $typeName: "tendon.v1.HarnessGoodbye" } });
  }

  /** Ends the stream; leases that were not given back are freed by the server. May be called twice. */
  async stop(): Promise<void> {
    this.leaving = true;
    this.stopping.abort();
    await this.connection?.finish();
    await this.running;
    for (const lease of [...this.leases.values()]) this.lose(lease, "the harness stopped");
  }

  release(lease: Lease, { reason, retryAfterMs, answersDueAfterMs, lacksRoom = false }: Release): void {
    if (this.leases.get(lease.id) !== lease) return;
    this.leases.delete(lease.id);
    lease.end("it was given back");
    const { id: leaseId, position } = lease;
    const value = create(ReleaseLeaseSchema, { leaseId, reason, position, lacksRoom });
    if (retryAfterMs !== undefined) value.retryAfter = durationFromMs(retryAfterMs);
    if (answersDueAfterMs !== undefined) value.answersDueAfter = durationFromMs(answersDueAfterMs);
    const message: Message = { case: "release", value };
    if (!this.connection?.welcomed) this.unsentReleases.set(lease.id, message);
    else this.connection.send(message);
  }

  /** A lease that is over is not renewed or attached any more. */
  forget(lease: Lease): void {
    if (this.leases.get(lease.id) === lease) this.lose(lease, "its session has another brain, or is over");
  }

  preview(lease: Lease, previews: Preview[]): void {
    if (lease.isOver || !this.connection?.welcomed || this.connection.isFull) return;
    const { sessionId, proof } = lease;
    const value = { $typeName: "tendon.v1.SessionPreviews" as const, lease: proof, sessionId, previews };
    this.connection.send({ case: "previews", value });
  }

  private async run(): Promise<void> {
    const { log, clock } = this.options;
    const { signal } = this.stopping;
    let lastProblem = "";
    const stopTicking = clock.every(TICK_MS, () => this.tick());
    signal.addEventListener("abort", stopTicking, { once: true });
    while (!signal.aborted) {
      const problem = await this.runConnection();
      if (signal.aborted) return;
      if (problem !== "" && problem !== lastProblem)
        log.warn({ problem }, "no connection to the server; trying again");
      lastProblem = problem;
      await clock.sleep(this.backoff.nextDelayMs(), signal).catch(() => {});
    }
  }

  /** Lives as long as one connection; gives what ended it, or "" for a server that asked to attach elsewhere. */
  private async runConnection(): Promise<string> {
    const { client, clock } = this.options;
    const call = client.work();
    const connection = new Connection(call, clock);
    this.connection = connection;
    try {
      connection.send({ case: "hello", value: this.hello() });
      for await (const message of call.responses) {
        connection.heard();
        this.take(connection, message);
      }
      return "";
    } catch (error) {
      return messageOf(error);
    } finally {
      call.cancel();
      this.connection = undefined;
    }
  }

  private hello() {
    const { instanceId, build, loops, capacity, modelSource } = this.options;
    return {
      $typeName: "tendon.v1.HarnessHello" as const,
      instanceId,
      protocolVersion: PROTOCOL_VERSION,
      build,
      loops: [...loops],
      capacity,
      modelSource,
      attach: [...this.leases.values()].map(({ sessionId, proof, position }) => ({
        $typeName: "tendon.v1.LeaseAttachment" as const,
        sessionId,
        lease: proof,
        position,
      })),
    };
  }

  private take(connection: Connection, { kind }: WorkResponse): void {
    switch (kind.case) {
      case "welcome":
        this.welcomed(connection, kind.value);
        return;
      case "assignment":
        this.assigned(kind.value);
        return;
      case "renewed":
        for (const id of kind.value.leaseIds) {
          this.leases.get(id)?.renewed(connection.renewalAskedMs + this.rhythm.leaseTtlMs);
        }
        for (const [id, token] of Object.entries(kind.value.sessionTokens)) {
          const lease = this.leases.get(id);
          if (lease !== undefined) lease.sessionToken = token;
        }
        return;
      case "leaseLost": {
        const lease = this.leases.get(kind.value.leaseId);
        if (lease !== undefined) this.lose(lease, kind.value.detail);
        return;
      }
      case "logAdvanced": {
        const lease = this.leases.get(kind.value.leaseId);
        if (lease !== undefined) this.options.advanced(lease, kind.value);
        return;
      }
      case "heartbeat":
        connection.receivedSequence = kind.value.sequence;
        return;
      case "draining":
        this.options.log.info("the server is about to stop; attaching elsewhere");
        // Hanging up at once lets another replica, or this one's successor, take the leases over.
        connection.hangUp();
        return;
    }
  }

  private welcomed(connection: Connection, welcome: HarnessWelcome): void {
    this.rhythm = rhythmOf(welcome);
    const attached = new Set(welcome.attachedLeaseIds);
    const liveUntilMs = connection.openedMs + this.rhythm.leaseTtlMs;
    for (const lease of [...this.leases.values()]) {
      if (attached.has(lease.id)) lease.renewed(liveUntilMs);
      else this.lose(lease, "it could not be attached again");
    }
    connection.welcomed = true;
    this.backoff.connected();
    if (this.leaving) connection.send({ case: "goodbye", value: { $typeName: "tendon.v1.HarnessGoodbye" } });
    for (const message of this.unsentReleases.values()) connection.send(message);
    this.unsentReleases.clear();
    this.options.log.info({ replica: welcome.replicaId, attached: attached.size }, "connected to the server");
  }

  private assigned(assignment: Assignment): void {
    const { lease: proof, session, sessionToken } = assignment;
    if (proof === undefined || session === undefined) return;
    const liveUntilMs = this.options.clock.monotonicMs() + this.rhythm.leaseTtlMs;
    const lease = new Lease(session.id, proof, sessionToken, liveUntilMs);
    this.leases.set(lease.id, lease);
    this.options.assigned(assignment, lease);
  }

  private lose(lease: Lease, why: string): void {
    this.leases.delete(lease.id);
    this.options.log.info({ sessionId: lease.sessionId, why }, "a lease ended");
    lease.end(why);
  }

  private tick(): void {
    const { connection } = this;
    if (connection !== undefined) this.tend(connection, this.options.clock.monotonicMs());
    this.endRunOut();
  }

  private tend(connection: Connection, nowMs: number): void {
    if (connection.isSilent(nowMs, this.rhythm.heartbeatTimeoutMs)) connection.hangUp();
    if (!connection.welcomed) return;
    if (nowMs - connection.beatMs >= this.rhythm.heartbeatEveryMs) connection.beat(nowMs);
    if (nowMs - connection.renewalAskedMs >= this.rhythm.renewEveryMs && this.leases.size > 0) {
      connection.renewalAskedMs = nowMs;
      connection.send({
        case: "renew",
        value: { $typeName: "tendon.v1.RenewLeases", leaseIds: [...this.leases.keys()] },
      });
    }
  }

  private endRunOut(): void {
    const nowMs = this.options.clock.monotonicMs();
    for (const lease of [...this.leases.values()]) {
      if (lease.hasRunOut(nowMs)) this.lose(lease, "it was not renewed in time");
    }
  }
}

/** One connection, from dialling to its end. */
class Connection {
  readonly openedMs: number;
  welcomed = false;
  /** When leases were last asked to be renewed. */
  renewalAskedMs: number;
  beatMs: number;
  receivedSequence = 0n;
  private readonly call: WorkCall;
  private readonly clock: Clock;
  private sequence = 0n;
  private heardMs: number;
  private silentTicks = 0;
  private waiting = 0;

  constructor(call: WorkCall, clock: Clock) {
    this.call = call;
    this.clock = clock;
    this.openedMs = clock.monotonicMs();
    this.heardMs = this.openedMs;
    this.renewalAskedMs = this.openedMs;
    this.beatMs = this.openedMs;
  }

  /** Whether the other side reads too slowly for more than it needs. */
  get isFull(): boolean {
    return this.waiting > 0;
  }

  send(kind: Message): void {
    this.waiting += 1;
    const sent = () => {
      this.waiting -= 1;
    };
    // A stream that broke is told to its reader.
    this.call.send({ kind }).then(sent, sent);
  }

  beat(nowMs: number): void {
    this.beatMs = nowMs;
    this.sequence += 1n;
    const { sequence, receivedSequence } = this;
    this.send({ case: "heartbeat", value: { $typeName: "tendon.v1.Heartbeat", sequence, receivedSequence } });
  }

  heard(): void {
    this.heardMs = this.clock.monotonicMs();
    this.silentTicks = 0;
  }

  /** Two looks in a row: after a process was held up, what arrived meanwhile is read between them. */
  isSilent(nowMs: number, timeoutMs: number): boolean {
    this.silentTicks = nowMs - this.heardMs > timeoutMs ? this.silentTicks + 1 : 0;
    return this.silentTicks >= 2;
  }

  hangUp(): void {
    this.call.cancel();
  }

  /** Lets what was sent leave, then ends the stream. */
  async finish(): Promise<void> {
    this.call.end();
    const deadlineMs = this.clock.monotonicMs() + 500;
    while (this.waiting > 0 && this.clock.monotonicMs() < deadlineMs) await this.clock.sleep(5);
    this.clock.after(500, () => this.call.cancel());
  }
}

function rhythmOf(welcome: HarnessWelcome): Rhythm {
  const { leaseTtl, renewEvery, heartbeatEvery, heartbeatTimeout } = welcome;
  if (!leaseTtl || !renewEvery || !heartbeatEvery || !heartbeatTimeout) {
    throw new TendonError("PROTOCOL_VERSION_UNSUPPORTED", "the server's welcome lacks its times");
  }
  return {
    leaseTtlMs: durationMs(leaseTtl),
    renewEveryMs: durationMs(renewEvery),
    heartbeatEveryMs: durationMs(heartbeatEvery),
    heartbeatTimeoutMs: durationMs(heartbeatTimeout),
  };
}
