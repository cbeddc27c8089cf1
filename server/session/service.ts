/** SessionService: parse → decide → store → answer. */
import { create } from "@bufbuild/protobuf";
import type { ByteBudget } from "../../kit/byte-budget.ts";
import type { Clock } from "../../kit/clock.ts";
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import { isId, isSessionId } from "../../kit/ids.ts";
import { refuseNul } from "../../kit/nul.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import type { SigningKey } from "../../kit/sign/key-file.ts";
import { Turns } from "../../kit/turns.ts";
import { EventSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import type {
  AgentChange,
  ArchiveSessionRequest,
  CreateSessionRequest,
  DeleteSessionRequest,
  EmitEventsRequest,
  EmitLargeEventsRequest,
  ExportSessionRequest,
  ForkSessionRequest,
  GetEventsRequest,
  GetSessionRequest,
  ImportSessionRequest,
  ListSessionsRequest,
  ReadPayloadRequest,
  SessionService,
  UpdateSessionRequest,
  WakeSessionRequest,
  WatchEventsRequest,
} from "../../proto/gen/tendon/v1/session_service_pb.js";
import { EventText } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { HandControl } from "../ports/hand-control.ts";
import type { HarnessDispatch } from "../ports/harness-dispatch.ts";
import { principalOf, scopeOf, workspaceOf } from "../ports/principal.ts";
import { madeOnce } from "../ports/repeated-creation.ts";
import { toSessionMessage } from "../ports/session-message.ts";
import type { BudgetStore } from "../store/budgets.ts";
import type { CheckpointStore } from "../store/checkpoints.ts";
import type { ClientCallStore } from "../store/client-calls.ts";
import type { EventStore } from "../store/events.ts";
import type { LogCopyStore } from "../store/log-copies.ts";
import type { OutcomeStore } from "../store/outcomes.ts";
import { sessionArchived } from "../store/refusals.ts";
import type { RequestIdStore } from "../store/request-ids.ts";
import type { ChangedSession, SessionRecord, SessionStanding, SessionStore } from "../store/sessions.ts";
import type { ThreadStore } from "../store/threads.ts";
import type { WorkStore } from "../store/work.ts";
import { changedAgent } from "./agent-change.ts";
import { budgetText, type CreationDeps, checkTexts, creationClaim, newSession } from "./creation.ts";
import { emitEvents, traceParentOf } from "./emit-events.ts";
import { toEventMessage } from "./event-message.ts";
import { exportLog } from "./export-log.ts";
import { forkLog } from "./fork-log.ts";
import { GivenFiles } from "./given-files.ts";
import type { Hub } from "./hub.ts";
import { importLog } from "./import-log.ts";
import { LargeEvents } from "./large-events.ts";
import { listSessions } from "./listing.ts";
import { announceAppended, headOf } from "./log.ts";
import { definesOutcome } from "./outcome-definitions.ts";
import { Places } from "./places.ts";
import { checkIsAdmin, checkMaySee, checkReadsInternal } from "./rules.ts";
import { boundsOf } from "./slice.ts";
import type { TreeEndings } from "./tree-endings.ts";
import type { TreeRelay } from "./tree-relay.ts";
import { startOf, watchLog } from "./watch.ts";
import { isWorker, shownToWorker, type WorkerPrincipal } from "./worker-view.ts";

export interface SessionServiceDeps extends CreationDeps {
  readonly events: EventStore;
  readonly sessions: SessionStore;
  readonly requestIds: Pick<RequestIdStore, "madeBy">;
  readonly logCopies: LogCopyStore;
  readonly checkpoints: CheckpointStore;
  readonly clientCalls: ClientCallStore;
  readonly outcomes: OutcomeStore;
  readonly budgets: BudgetStore;
  readonly threads: ThreadStore;
  readonly work: Pick<WorkStore, "show">;
  readonly endings: TreeEndings;
  readonly relay: () => Pick<TreeRelay, "relay">;
  /** What this replica signs checkpoints with. */
  readonly signingKey: SigningKey;
  /** Bounds large texts that are being put together. */
  readonly assembly: ByteBudget;
  readonly hub: Hub;
  readonly dispatch: HarnessDispatch;
  readonly hands: Pick<HandControl, "releaseSession">;
  readonly defaultWorkspaceId: string;
  readonly clock: Clock;
}

const ERASED_TEXT = "the session was erased before the call ended";
const DEFAULT_EVENTS = 100;
const MAX_INLINE_BYTES = 1024 * 1024;
const MAX_SLICE_BYTES = 2 * 1024 * 1024;
const CHUNK_BYTES = 1024 * 1024;
/** A text is cut by Postgres, which has to unpack all of it each time: read in larger pieces than are sent. */
const READ_BYTES = 4 * CHUNK_BYTES;

export class SessionServiceHandler implements ServiceImplementation<typeof SessionService> {
  private readonly deps: SessionServiceDeps;
  private readonly places: Places;
  private readonly turns = new Turns("session's agent");

  constructor(deps: SessionServiceDeps) {
    this.deps = deps;
    this.places = new Places(deps.sessions);
  }

  async createSession(request: CreateSessionRequest, context: RpcContext) {
    const principal = principalOf(context);
    const workspaceId = workspaceOf(principal, this.deps.defaultWorkspaceId);
    const given = new GivenFiles(this.deps.files, this.deps.assembly);
    const make = async () => {
      const wanted = await newSession(this.deps, request, principal, workspaceId, given);
      const made = await this.deps.sessions.create(wanted);
      const hasOutcome = wanted.events.some(definesOutcome);
      return this.changed(await traced(this.deps.events, made, traceParentOf(context)), hasOutcome);
    };
    try {
      return await madeOnce(this.deps.requestIds, creationClaim(request, workspaceId), make, async (id) => {
        const session = await this.deps.sessions.find(id);
        return session && this.changed({ session, appended: undefined });
      });
    } finally {
      given.close();
    }
  }

  async getSession({ sessionId }: GetSessionRequest, context: RpcContext) {
    const record = await this.find(sessionId, context);
    const tree = record.rootSessionId === undefined ? await this.deps.threads.tree(sessionId) : undefined;
    const outcomes = await this.deps.outcomes.ofSessions([sessionId]);
    return { session: toSessionMessage(record, { tree, outcomes: outcomes.get(sessionId) }) };
  }

  listSessions(request: ListSessionsRequest, context: RpcContext) {
    return listSessions(this.deps, request, scopeOf(principalOf(context)));
  }

  async updateSession(request: UpdateSessionRequest, context: RpcContext) {
    const { sessionId, title, metadata, budget } = request;
    await this.checkPlace(sessionId, context);
    if (budget !== undefined && isId("thread", sessionId)) {
      throw invalidField("budget", "a thread has none of its own: the session at its root has it");
    }
    checkTexts({ title, metadata });
    const changed = await this.turns.untilDone(sessionId, async () => {
      const agent = request.agent && (await this.agentChange(sessionId, request.agent, context));
      const change = { sessionId, title, metadata, budget: budget && budgetText(budget), agent };
      return this.deps.sessions.update(change);
    });
    return this.changed(changed);
  }

  private async agentChange(sessionId: string, wanted: AgentChange, context: RpcContext) {
    if (isId("thread", sessionId)) throw invalidField("agent", "a thread's agent is not changed");
    const session = await this.find(sessionId, context);
    const after = await changedAgent(this.deps.agentRules, session, wanted);
    if (after !== session.agent) await this.deps.endings.checkAtRest(sessionId);
    return { before: session.agent, after };
  }

  async archiveSession({ sessionId, interrupt }: ArchiveSessionRequest, context: RpcContext) {
    await this.checkPlace(sessionId, context);
    return this.archive(sessionId, interrupt, "the session was archived before the call ended");
  }

  async deleteSession({ sessionId, interrupt }: DeleteSessionRequest, context: RpcContext) {
    await this.checkPlace(sessionId, context);
    if (isId("thread", sessionId)) {
      throw invalidField("session_id", "a thread is deleted with the session at its root; stop it instead");
    }
    // Archived first: nobody writes any more, lease and hands are given up while the session still has a name.
    await this.archive(sessionId, interrupt, "the session was deleted before the call ended");
    if (!(await this.delete(sessionId))) throw notFound("session", sessionId);
    return {};
  }

  /** Erases an archived session that retention has found. */
  async erase(sessionId: string): Promise<void> {
    await this.deps.endings.archiveBelow(sessionId, (id) => this.archiveOne(id, true, ERASED_TEXT));
    await this.deps.hands.releaseSession(sessionId);
    await this.delete(sessionId);
  }

  /** Ends a thread, and those below it, for good. */
  async stopThread(threadId: string): Promise<void> {
    await this.archive(threadId, true, "the thread was stopped before the call ended");
    await this.deps.relay().relay(threadId);
  }

  private async delete(sessionId: string): Promise<boolean> {
    for (const threadId of await this.deps.threads.ofRoot(sessionId)) await this.deleteOne(threadId);
    return this.deleteOne(sessionId);
  }

  private async deleteOne(sessionId: string): Promise<boolean> {
    const deleted = await this.deps.sessions.delete(sessionId);
    this.places.forget(sessionId);
    this.deps.hub.ended(sessionId, "deleted");
    return deleted;
  }

  async emitEvents(request: EmitEventsRequest, context: RpcContext) {
    await this.checkPlace(request.sessionId, context);
    return this.emit(request, context);
  }

  async emitLargeEvents(requests: AsyncIterable<EmitLargeEventsRequest>, context: RpcContext) {
    const large = new LargeEvents(this.deps.assembly);
    try {
      const request = await large.read(requests, ({ sessionId }) => this.checkPlace(sessionId, context));
      return await this.emit(request, context);
    } finally {
      large.close();
    }
  }

  private async emit(request: EmitEventsRequest, context: RpcContext) {
    const { workspaceId } = await this.places.get(request.sessionId);
    const given = new GivenFiles(this.deps.files, this.deps.assembly);
    try {
      return await emitEvents(this.deps, request, { context, workspaceId, given });
    } finally {
      given.close();
    }
  }

  async getEvents(request: GetEventsRequest, context: RpcContext) {
    const { sessionId, lease } = request;
    refuseNul(request.types, "types");
    refuseNul(request.untilTypes, "until_types");
    const standing = await this.standing(sessionId, context);
    if (lease) checkReadsInternal(principalOf(context), lease, standing);
    const slice = await this.deps.events.read({
      sessionId,
      ...(await boundsOf(this.deps.events, request, standing.head)),
      types: request.types,
      limit: request.limit || DEFAULT_EVENTS,
      maxBytes: request.maxBytes || MAX_SLICE_BYTES,
      inlineLimitBytes: request.inlineLimitBytes || MAX_INLINE_BYTES,
      withInternal: lease !== undefined,
    });
    const events = slice.events.map((event) => toEventMessage(event, lease !== undefined));
    const principal = principalOf(context);
    return {
      events: isWorker(principal) ? await shownToWorker(this.deps, principal, sessionId, events) : events,
      head: headOf(standing.head, slice.events),
      hasMore: slice.hasMore,
    };
  }

  async *watchEvents(request: WatchEventsRequest, context: RpcContext) {
    const { sessionId, afterPosition, types } = request;
    refuseNul(types, "types");
    const { hub } = this.deps;
    await this.checkPlace(sessionId, context);
    const watcher = hub.watch(sessionId, request.previews);
    try {
      const standing = await this.deps.sessions.standing(sessionId);
      const start = startOf(sessionId, afterPosition, standing?.head);
      watcher.advance(standing!.head);
      watcher.checkpointed(standing!.checkpointPosition);
      if (standing!.archived) watcher.end("archived");
      const inlineLimitBytes = request.inlineLimitBytes || MAX_INLINE_BYTES;
      const { signal } = context;
      const watched = watchLog(this.deps, { watcher, afterPosition: start, types, inlineLimitBytes, signal });
      const principal = principalOf(context);
      yield* isWorker(principal) ? this.seenBy(principal, sessionId, watched) : watched;
    } finally {
      hub.unwatch(watcher);
    }
  }

  private async *seenBy(
    worker: WorkerPrincipal,
    sessionId: string,
    watched: ReturnType<typeof watchLog>,
  ): ReturnType<typeof watchLog> {
    for await (const message of watched) {
      if (message.kind?.case !== "event") {
        yield message;
        continue;
      }
      const event = create(EventSchema, message.kind.value);
      const [shown] = await shownToWorker(this.deps, worker, sessionId, [event]);
      if (shown !== undefined) yield { kind: { case: "event", value: shown } };
    }
  }

  async wakeSession({ sessionId }: WakeSessionRequest, context: RpcContext) {
    const standing = await this.standing(sessionId, context);
    if (standing.archived) throw sessionArchived(sessionId);
    return this.deps.dispatch.wake(sessionId);
  }

  async forkSession(request: ForkSessionRequest, context: RpcContext) {
    const standing = () => this.standing(request.sessionId, context);
    return this.changed(await forkLog(this.deps, request, { principal: principalOf(context), standing }));
  }

  async *exportSession({ sessionId, withInternal }: ExportSessionRequest, context: RpcContext) {
    const session = await this.find(sessionId, context);
    if (withInternal) checkIsAdmin(principalOf(context), "with_internal");
    const at = new Date(this.deps.clock.nowMs());
    yield* exportLog(this.deps, session, { withInternal, at });
  }

  async importSession(requests: AsyncIterable<ImportSessionRequest>, context: RpcContext) {
    const principal = principalOf(context);
    const workspaceId = workspaceOf(principal, this.deps.defaultWorkspaceId);
    const budget = this.deps.assembly;
    return this.changed(await importLog(this.deps, { requests, principal, workspaceId, budget }));
  }

  async *readPayload(request: ReadPayloadRequest, context: RpcContext) {
    const { sessionId, eventId, lease, offsetBytes } = request;
    const standing = await this.standing(sessionId, context);
    const text = request.text === EventText.INTERNAL ? "internal" : "payload";
    if (text === "internal") {
      if (!lease)
        throw new TendonError("LEASE_FENCED", "lease: needed to read what only brains see", {
          field: "lease",
        });
      checkReadsInternal(principalOf(context), lease, standing);
    }
    if (!isId("event", eventId)) throw notFound("event", eventId);
    let offset = offsetBytes;
    for (;;) {
      const query = { sessionId, eventId, text, offsetBytes: Number(offset), maxBytes: READ_BYTES } as const;
      const part = await this.deps.events.readText(query);
      if (!part) throw notFound(text === "payload" ? "event" : "event with an internal text", eventId);
      if (offset > BigInt(part.sizeBytes)) {
        const problem = `offset_bytes: ${offset} is behind the end, the text has ${part.sizeBytes} bytes`;
        throw new TendonError("RESYNC", problem, { field: "offset_bytes", size: String(part.sizeBytes) });
      }
      for (let at = 0; at < part.chunk.length; at += CHUNK_BYTES) {
        yield { chunk: part.chunk.subarray(at, at + CHUNK_BYTES) };
      }
      offset += BigInt(part.chunk.length);
      if (offset >= BigInt(part.sizeBytes)) return;
    }
  }

  /** With its threads. Those that are made meanwhile are found by the relay. */
  private async archive(sessionId: string, interrupt: boolean, openCallText: string) {
    const { endings } = this.deps;
    const archiveBelow = () =>
      endings.archiveBelow(sessionId, (id) => this.archiveOne(id, true, openCallText));
    if (interrupt) await archiveBelow();
    else await endings.checkAtRest(sessionId);
    const answer = await this.archiveOne(sessionId, interrupt, openCallText);
    await archiveBelow();
    return answer;
  }

  /** Also completes what an earlier attempt had left: withdrawing and releasing twice does nothing. */
  private async archiveOne(sessionId: string, interrupt: boolean, openCallText: string) {
    const change = await this.deps.sessions.archive({ sessionId, interrupt, openCallText });
    const answer = await this.changed(change);
    this.deps.hub.ended(sessionId, "archived");
    await this.deps.dispatch.withdraw(sessionId, "the session was archived");
    await this.deps.hands.releaseSession(sessionId);
    return answer;
  }

  private async changed({ session, appended, others = [] }: ChangedSession, mayHaveOutcomes = true) {
    if (appended) announceAppended(this.deps.hub, session.sessionId, appended);
    for (const other of others) announceAppended(this.deps.hub, other.sessionId, other.appended);
    const ids = mayHaveOutcomes ? [session.sessionId] : [];
    const outcomes = ids.length === 0 ? undefined : await this.deps.outcomes.ofSessions(ids);
    return { session: toSessionMessage(session, { outcomes: outcomes?.get(session.sessionId) }) };
  }

  private async checkPlace(sessionId: string, context: RpcContext): Promise<void> {
    checkMaySee(principalOf(context), sessionId, await this.places.get(sessionId));
  }

  private async standing(sessionId: string, context: RpcContext): Promise<SessionStanding> {
    const standing = isSessionId(sessionId) ? await this.deps.sessions.standing(sessionId) : undefined;
    if (!standing) throw notFound("session", sessionId);
    checkMaySee(principalOf(context), sessionId, standing);
    return standing;
  }

  private async find(sessionId: string, context: RpcContext): Promise<SessionRecord> {
    const record = isSessionId(sessionId) ? await this.deps.sessions.find(sessionId) : undefined;
    if (!record) throw notFound("session", sessionId);
    checkMaySee(principalOf(context), sessionId, record);
    return record;
  }
}

/** The first events of a session come with the trace of the call that made it. */
async function traced(
  events: EventStore,
  made: ChangedSession,
  traceParent: string | undefined,
): Promise<ChangedSession> {
  const { session, appended } = made;
  if (appended === undefined || traceParent === undefined) return made;
  return { session, appended: await events.keepTrace(session.sessionId, appended, traceParent) };
}
