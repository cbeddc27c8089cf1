/**
 * Hands sessions with work to connected harnesses. One runs in each replica; the database decides who wins.
 *
 * D1 What has work is asked of the database; hints only say when to ask. A lost hint costs one poll.
 * D2 An assignment is sent after the lease is committed, and never under a lease that this replica did not take or re-attach.
 * D3 The connection that a lease belongs to is found in `connections`; a connection that ended leaves it at once, and its
 *    leases are freed only if they are still this replica's and nobody re-attached them within the grace.
 */

import { create } from "@bufbuild/protobuf";
import type { Clock } from "../../kit/clock.ts";
import { isTendonError, messageOf } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import type { Tracing } from "../../kit/trace.ts";
import { LeaseProofSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import type { HandControl } from "../ports/hand-control.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { SessionDirectory } from "../ports/session-directory.ts";
import type { Advance, SessionLog } from "../ports/session-log.ts";
import type { SessionTokens } from "../ports/session-tokens.ts";
import type { AcquiredLease, LeaseStore, WaitingSession } from "../store/leases.ts";
import { completeAssignment, type ForeseenAssignment, foreseeAssignment } from "./assignments.ts";
import type { HarnessConnection } from "./harness-connection.ts";
import { HeldSession } from "./held-session.ts";
import {
  ABANDONED_GRACE_MS,
  OTHERS_FIRST_MS,
  PARALLEL_ASSIGNMENTS,
  POLL_EVERY_MS,
  REATTACH_GRACE_MS,
  SUSPECT_BATCH,
  WORK_BATCH,
} from "./limits.ts";
import { deathsOf, giveUpEvents, rescheduledEvent } from "./outcomes.ts";
import { answerOverdue, type OverdueDeps } from "./overdue-answers.ts";
import { choose, chooseToEmpty, isPoison, mustRunAlone, roomsOf } from "./rules.ts";
import { traceAssignment } from "./trace-assignment.ts";

export interface DispatcherDeps {
  readonly leases: LeaseStore;
  readonly clientCalls: OverdueDeps["clientCalls"];
  readonly sessionLog: SessionLog;
  readonly sessions: SessionDirectory;
  readonly hands: HandControl;
  readonly tokens: SessionTokens;
  readonly proxies: ProxyDirectory;
  readonly replicaId: string;
  readonly leaseTtlMs: number;
  readonly tracing: Tracing;
  readonly clock: Clock;
  readonly log: Logger;
}

export class Dispatcher implements Service {
  readonly name = "dispatcher";
  private readonly deps: DispatcherDeps;
  private readonly connections = new Set<HarnessConnection>();
  /** Held sessions of this replica, by session id. */
  private readonly held = new Map<string, { session: HeldSession; connection: HarnessConnection }>();
  private readonly assigning = new Set<string>();
  /**
   * Who let the session's lease run out while it stayed connected, or had no room for it: others come first for a moment. By
   * session id.
   */
  private readonly passedOver = new Map<string, { connection: HarnessConnection; sinceMs: number }>();
  private readonly stops: (() => void)[] = [];
  private round: Promise<void> | undefined;
  private roundAgain = false;
  /** Somebody may wait for want of room: places are given in the fair order, until a round ends with room to spare. */
  private isCrowded = true;
  private stopped = false;

  constructor(deps: DispatcherDeps) {
    this.deps = deps;
  }

  async start(): Promise<void> {
    const { sessionLog, clock } = this.deps;
    this.stops.push(sessionLog.onAdvance((advance) => this.advanced(advance)));
    this.stops.push(clock.every(POLL_EVERY_MS, () => void this.poll()));
  }

  async stop(): Promise<void> {
    this.stopped = true;
    for (const stop of this.stops.splice(0)) stop();
    await this.round;
  }

  join(connection: HarnessConnection): void {
    this.connections.add(connection);
    this.look();
  }

  /** The connection's stream ended. Its leases wait a moment for the same harness to attach again (E2). */
  leave(connection: HarnessConnection, how: "goodbye" | "broken" | "draining"): void {
    this.connections.delete(connection);
    const sessions = [...connection.held.values()];
    for (const session of sessions) {
      connection.drop(session);
      if (this.held.get(session.sessionId)?.session === session) this.held.delete(session.sessionId);
    }
    // A server that stops or dies frees nothing: the harness attaches to another replica, or the TTL passes.
    if (this.stopped || how === "draining" || sessions.length === 0) return;
    const free = () => void this.freeAll(sessions, how === "broken");
    if (how === "goodbye") free();
    else this.deps.clock.after(REATTACH_GRACE_MS, free);
  }

  /** Makes the connection the holder of a lease that was acquired or re-attached. */
  hold(connection: HarnessConnection, lease: AcquiredLease, known: bigint): HeldSession {
    const { sessionLog, log } = this.deps;
    const session = new HeldSession(lease, known, {
      sessionLog,
      log,
      send: (message) => connection.send(message),
    });
    this.held.get(lease.sessionId)?.session.close();
    connection.held.set(lease.leaseId, session);
    if (mustRunAlone(lease)) connection.alone = true;
    this.held.set(lease.sessionId, { session, connection });
    return session;
  }

  async release(
    connection: HarnessConnection,
    { leaseId, othersFirst }: { readonly leaseId: string; readonly othersFirst: boolean },
    how: Omit<Parameters<LeaseStore["release"]>[0], "leaseId">,
  ): Promise<void> {
    const session = connection.held.get(leaseId);
    if (session !== undefined) {
      connection.drop(session);
      if (this.held.get(session.sessionId)?.session === session) this.held.delete(session.sessionId);
      if (othersFirst) this.letOthersFirst(session.sessionId, connection);
    }
    const { hasWork } = await this.deps.leases.release({ leaseId, ...how });
    if (hasWork || connection.sessions + 1 >= connection.capacity) this.look();
  }

  /** A holder on this replica, if there is one, is told that its lease is over. */
  lose(sessionId: string, detail: string): void {
    const holder = this.held.get(sessionId);
    if (holder === undefined) return;
    this.held.delete(sessionId);
    holder.connection.lose(holder.session.leaseId, detail);
  }

  /** Looks for work now; asked while it looks, it looks once more. */
  look(): void {
    if (this.stopped) return;
    this.roundAgain = true;
    this.round ??= this.rounds().finally(() => {
      this.round = undefined;
    });
  }

  private advanced(advance: Advance): void {
    this.held.get(advance.sessionId)?.session.advanced(advance);
    if (!advance.hasWork || this.held.has(advance.sessionId) || this.stopped) return;
    if (this.assigning.size < PARALLEL_ASSIGNMENTS && this.mayPass) void this.tryOne(advance.sessionId);
    else this.look();
  }

  /** With room to spare nobody is waiting, and a session can be taken without asking for the fair order. */
  private get mayPass(): boolean {
    return this.round === undefined && !this.isCrowded;
  }

  private async tryOne(sessionId: string): Promise<void> {
    try {
      const waiting = await this.deps.leases.findWaiting(sessionId);
      if (waiting === undefined) return;
      // Where sessions are counted they are taken one round after the other.
      if (waiting.isLimited || !this.mayPass) this.look();
      else await this.assign(waiting);
    } catch (error) {
      this.deps.log.warn(
        { sessionId, error: messageOf(error) },
        "could not assign a session; the next poll tries again",
      );
    }
  }

  private async rounds(): Promise<void> {
    while (this.roundAgain && !this.stopped) {
      this.roundAgain = false;
      try {
        await this.oneRound();
      } catch (error) {
        this.isCrowded = true;
        this.deps.log.warn({ error: messageOf(error) }, "could not look for work; the next poll tries again");
      }
    }
  }

  private async oneRound(): Promise<void> {
    await this.settleSuspects();
    this.isCrowded = false;
    for (let rooms = this.rooms(); rooms.length > 0 && !this.stopped; rooms = this.rooms()) {
      const waiting = await this.deps.leases.findWork({ limit: WORK_BATCH, rooms });
      let assigned = 0;
      for (let i = 0; i < waiting.length; i += PARALLEL_ASSIGNMENTS) {
        const outcomes = await Promise.all(
          waiting.slice(i, i + PARALLEL_ASSIGNMENTS).map((session) => this.assign(session)),
        );
        assigned += outcomes.filter(Boolean).length;
      }
      if (assigned === 0 || waiting.length < WORK_BATCH) break;
    }
    if (this.rooms().length === 0) this.isCrowded = true;
  }

  private rooms() {
    return roomsOf(this.connections);
  }

  /** Those that killed their harness get one for themselves, or have had it and are given up (E4). */
  private async settleSuspects(): Promise<void> {
    const suspects = await this.deps.leases.findSuspects(SUSPECT_BATCH);
    this.makeRoom(suspects);
    for (const suspect of suspects) await this.assign(suspect);
  }

  /** Sessions that must run alone do not wait for ever: a harness that has neighbours takes nothing new until one of them had it. */
  private makeRoom(suspects: readonly WaitingSession[]): void {
    for (const connection of this.connections) connection.keptFree = false;
    for (const session of suspects) {
      if (isPoison(session)) continue;
      const candidates = this.candidates(session);
      if (choose(candidates, session) !== undefined) continue;
      const emptied = chooseToEmpty(candidates, session);
      if (emptied !== undefined) emptied.keptFree = true;
    }
  }

  private candidates({ sessionId, workspaceId }: WaitingSession): HarnessConnection[] {
    const passedOver = this.passedOver.get(sessionId)?.connection;
    return [...this.connections].filter(
      (connection) =>
        connection !== passedOver &&
        (connection.workspaceId === undefined || connection.workspaceId === workspaceId),
    );
  }

  /** Takes the lease for a harness that has room, and sends the session there. False when nobody took it. */
  private async assign(waiting: WaitingSession): Promise<boolean> {
    const { sessionId } = waiting;
    if (this.assigning.has(sessionId)) return false;
    if (this.held.has(sessionId)) return this.assigningNow(sessionId, () => this.dropRunOut(sessionId));
    // Nobody needs to die once more to end a session that has killed even the harness that it had for itself.
    if (isPoison(waiting)) return this.assigningNow(sessionId, () => this.takeAndGiveUp(sessionId));
    const connection = choose(this.candidates(waiting), waiting);
    if (connection === undefined) {
      this.isCrowded = true;
      return false;
    }
    connection.pending += 1;
    if (mustRunAlone(waiting)) connection.alone = true;
    try {
      return await this.assigningNow(sessionId, async () => {
        const foreseen = foreseeAssignment(this.deps, sessionId);
        const lease = await this.take(sessionId, connection.instanceId);
        if (lease !== undefined) await this.deliver(connection, lease, foreseen);
        return lease !== undefined;
      });
    } finally {
      connection.pending -= 1;
      if (connection.sessions === 0) connection.alone = false;
    }
  }

  /**
   * A lease can run out without a word: its holder took it for over itself, or could not renew it. Nobody renews or attaches
   * one that has run out, so a holder that is the same before and after the database says that the session waits has lost it.
   */
  private async dropRunOut(sessionId: string): Promise<boolean> {
    const holder = this.held.get(sessionId);
    if (holder === undefined || (await this.deps.leases.findWaiting(sessionId)) === undefined) return false;
    if (this.held.get(sessionId) !== holder) return false;
    this.letOthersFirst(sessionId, holder.connection);
    this.lose(sessionId, "it was not renewed in time");
    this.look();
    return false;
  }

  private letOthersFirst(sessionId: string, connection: HarnessConnection): void {
    this.passedOver.set(sessionId, { connection, sinceMs: this.deps.clock.monotonicMs() });
  }

  private async assigningNow(sessionId: string, run: () => Promise<boolean>): Promise<boolean> {
    this.assigning.add(sessionId);
    try {
      return await run();
    } finally {
      this.assigning.delete(sessionId);
    }
  }

  private take(sessionId: string, holderId: string): Promise<AcquiredLease | undefined> {
    const { leases, leaseTtlMs: ttlMs, replicaId } = this.deps;
    return leases.acquire({ sessionId, leaseId: newId("lease"), harnessId: holderId, replicaId, ttlMs });
  }

  private async takeAndGiveUp(sessionId: string): Promise<boolean> {
    const lease = await this.take(sessionId, this.deps.replicaId);
    if (lease !== undefined) await this.giveUp(lease);
    return lease !== undefined;
  }

  private async deliver(
    connection: HarnessConnection,
    lease: AcquiredLease,
    foreseen: ForeseenAssignment,
  ): Promise<void> {
    if (isPoison(lease)) return this.giveUp(lease);
    try {
      const assignment = await completeAssignment(this.deps, lease, foreseen);
      if (!this.connections.has(connection)) throw new Error("the harness left meanwhile");
      const session = this.hold(connection, lease, assignment.tail.at(-1)?.position ?? 0n);
      session.tokenIssuedAtMs = this.deps.clock.nowMs();
      connection.send({ case: "assignment", value: assignment });
      traceAssignment(this.deps.tracing, lease, assignment.tail);
    } catch (error) {
      this.deps.log.warn(
        { sessionId: lease.sessionId, error: messageOf(error) },
        "could not deliver an assignment",
      );
      await this.deps.leases.free({ leaseId: lease.leaseId, replicaId: this.deps.replicaId, crashed: false });
    }
  }

  /**
   * The session has killed even the harness that it had for itself: its turn ends, and the next message starts afresh. One
   * that comes while this is written is such a message already: only what was there before counts as seen.
   */
  private async giveUp(lease: AcquiredLease): Promise<void> {
    const { sessionId, leaseId, epoch, head } = lease;
    const proof = create(LeaseProofSchema, { leaseId, epoch });
    await this.deps.sessionLog.append({ sessionId, events: giveUpEvents(deathsOf(lease)), lease: proof });
    const { hasWork } = await this.deps.leases.release({
      leaseId,
      restedPosition: head,
      retryAfterMs: undefined,
    });
    if (hasWork) this.look();
  }

  private async freeAll(sessions: readonly HeldSession[], crashed: boolean): Promise<void> {
    for (const { sessionId, leaseId } of sessions) {
      // Attached again meanwhile: the lease has a holder.
      if (this.held.get(sessionId)?.session.leaseId === leaseId) continue;
      try {
        await this.deps.leases.free({ leaseId, replicaId: this.deps.replicaId, crashed });
      } catch (error) {
        this.deps.log.warn(
          { sessionId, error: messageOf(error) },
          "could not free a lease; it runs out by itself",
        );
      }
    }
    this.look();
  }

  /** One replica says it: the log is as it was found, or somebody has said something newer (E3). */
  private async tellAbandoned(): Promise<void> {
    const { leases, sessionLog } = this.deps;
    const found = await leases.findAbandoned({ graceMs: ABANDONED_GRACE_MS, limit: WORK_BATCH });
    for (const { sessionId, head } of found) {
      const append = { sessionId, events: [rescheduledEvent()], expectedPosition: BigInt(head) };
      await sessionLog.append(append).catch((error: unknown) => {
        if (!isTendonError(error, "POSITION_MISMATCH")) throw error;
      });
    }
  }

  private async poll(): Promise<void> {
    const nowMs = this.deps.clock.monotonicMs();
    for (const [sessionId, { connection, sinceMs }] of this.passedOver) {
      const mayHaveIt = nowMs >= sinceMs + OTHERS_FIRST_MS && connection.lastHeardMs > sinceMs;
      if (mayHaveIt || !this.connections.has(connection)) this.passedOver.delete(sessionId);
    }
    this.look();
    try {
      await this.tellAbandoned();
      await answerOverdue(this.deps);
    } catch (error) {
      this.deps.log.warn(
        { error: messageOf(error) },
        "could not look for abandoned sessions and overdue answers; the next poll tries again",
      );
    }
  }
}
