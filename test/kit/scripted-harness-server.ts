/**
 * The far side of a harness's wire, for its tests: HarnessService, SessionService and HandService over a real socket, with
 * logs in memory and hands that follow a script. It keeps the contract's promises that a harness relies on: dense positions,
 * idempotent appends, fencing, one result per call, work offered again while there is more than the last brain had seen.
 */
import { create } from "@bufbuild/protobuf";
import { durationFromMs, timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { ServerClients } from "../../harness/server-clients.ts";
import { systemClock } from "../../kit/clock.ts";
import { dial } from "../../kit/dial/dial.ts";
import { notFound, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { type Listener, listen } from "../../kit/listen/listen.ts";
import { createLogger } from "../../kit/log.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import { createGrpcServer, mountGrpc } from "../../kit/rpc/mount-grpc.ts";
import { bindService, type ServiceImplementation } from "../../kit/rpc/service.ts";
import { validationInterceptor } from "../../kit/rpc/validation.ts";
import { type AgentSpec, AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { Event, Preview } from "../../proto/gen/tendon/v1/event_pb.js";
import { ExecutionOutcome } from "../../proto/gen/tendon/v1/hand_pb.js";
import { type ExecuteRequest, HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import {
  AssignmentSchema,
  HarnessService,
  ReleaseReason,
  type WorkRequest,
} from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { MemoryService } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { SessionSchema } from "../../proto/gen/tendon/v1/session_pb.js";
import {
  type EmitEventsRequest,
  EventText,
  type ReadPayloadRequest,
  SessionService,
} from "../../proto/gen/tendon/v1/session_service_pb.js";
import { ThreadService } from "../../proto/gen/tendon/v1/thread_service_pb.js";
import { answeredBy, type ScriptedSession, Session, shortened, sliceOf } from "./scripted-session.ts";
import { WorkConnection } from "./scripted-work-connection.ts";

/** What a hand answers to a call; it may wait, until `signal` aborts when the call is cancelled. */
export type ScriptedTool = (
  input: Record<string, unknown>,
  signal: AbortSignal,
) => Promise<{ text: string; isError?: boolean }> | { text: string; isError?: boolean };

export interface ScriptedServerOptions {
  tools?: Record<string, ScriptedTool>;
  leaseTtlMs?: number;
  reattachMs?: number;
  heartbeatEveryMs?: number;
  heartbeatTimeoutMs?: number;
  /** Texts above this are left out of pages and pushes. */
  inlineLimitBytes?: number;
}

export interface ScriptedServer {
  readonly url: string;
  readonly previews: readonly { sessionId: string; preview: Preview }[];
  readonly releases: readonly { sessionId: string; reason: ReleaseReason }[];
  /** How often each execution began to run, by `<session id>/<execution id>`. */
  readonly runs: ReadonlyMap<string, number>;
  readonly hellos: readonly Extract<WorkRequest["kind"], { case: "hello" }>["value"][];
  session(id: string): ScriptedSession;
  /** A session with this agent; `log` are events that it already has. */
  createSession(spec?: Partial<AgentSpec>, log?: readonly Event[]): ScriptedSession;
  /** Cuts every harness's connection. */
  cutConnections(): void;
  /** While set, appends fail with UNAVAILABLE; the n-th call decides. */
  failAppend: ((request: EmitEventsRequest) => TendonError | undefined) | undefined;
  clients(): { server: ServerClients; close(): void };
  stop(): Promise<void>;
}

const TOOL_SCHEMA = `{"type":"object","properties":{"command":{"type":"string"}}}`;

export async function startScriptedServer(options: ScriptedServerOptions = {}): Promise<ScriptedServer> {
  const server = new Scripted(options);
  await server.listen();
  return server;
}

interface Execution {
  readonly done: Promise<void>;
  readonly cancel: () => void;
  ended: boolean;
}

class Scripted implements ScriptedServer {
  readonly previews: { sessionId: string; preview: Preview }[] = [];
  readonly releases: { sessionId: string; reason: ReleaseReason }[] = [];
  readonly runs = new Map<string, number>();
  readonly hellos: Extract<WorkRequest["kind"], { case: "hello" }>["value"][] = [];
  failAppend: ((request: EmitEventsRequest) => TendonError | undefined) | undefined;
  private readonly options: ScriptedServerOptions;
  private readonly sessions = new Map<string, Session>();
  private readonly connections = new Set<WorkConnection>();
  private readonly executions = new Map<string, Execution>();
  private readonly holders = new Map<string, string>();
  private listener: Listener | undefined;

  constructor(options: ScriptedServerOptions) {
    this.options = options;
  }

  get inlineLimit(): number {
    return this.options.inlineLimitBytes ?? 1024 * 1024;
  }

  get url(): string {
    return `http://127.0.0.1:${this.listener!.port}`;
  }

  async listen(): Promise<void> {
    const log = createLogger("scripted-server", "silent");
    const grpcServer = createGrpcServer();
    const services = [
      bindService(HarnessService, this.harnessService()),
      bindService(SessionService, this.sessionService()),
      bindService(HandService, this.handService()),
    ];
    mountGrpc(grpcServer, services, { interceptors: [validationInterceptor()], log });
    const httpHandler = (_: unknown, response: { destroy(): unknown }) => void response.destroy();
    this.listener = await listen({ host: "127.0.0.1", port: 0, h2c: "auto", grpcServer, httpHandler, log });
  }

  session(id: string): Session {
    const session = this.sessions.get(id);
    if (session === undefined) throw notFound("session", id);
    return session;
  }

  createSession(spec: Partial<AgentSpec> = {}, log: readonly Event[] = []): Session {
    const agent = create(AgentSpecSchema, {
      name: "test",
      tools: [{ kind: { case: "handToolset", value: {} } }],
      ...(spec as object),
    });
    const session = new Session(this, agent, log);
    this.sessions.set(session.id, session);
    this.offer(session);
    return session;
  }

  cutConnections(): void {
    for (const { context } of this.connections) this.listener!.destroyPeer(context.peer);
  }

  clients() {
    const connection = dial({ url: this.url, proxy: {} });
    const server = {
      harness: connection.client(HarnessService),
      sessions: connection.client(SessionService),
      hands: connection.client(HandService),
      memory: connection.client(MemoryService),
      threads: connection.client(ThreadService),
    };
    return { server, close: () => connection.close() };
  }

  async stop(): Promise<void> {
    for (const { cancel } of this.executions.values()) cancel();
    for (const connection of this.connections) connection.end();
    await this.listener?.close({ graceMs: 200 });
  }

  offer(session: Session): void {
    if (session.isHeld || !session.hasWork || Date.now() < session.notBeforeMs) return;
    const connection = [...this.connections].find((c) => !c.leaving && c.held.size < c.capacity);
    if (connection === undefined) return;
    session.epoch += 1n;
    session.leaseId = newId("lease");
    session.holder = connection;
    session.known = session.head;
    connection.held.add(session);
    this.holders.set(session.leaseId, connection.instanceId);
    const ttl = this.options.leaseTtlMs ?? 30_000;
    connection.send({
      case: "assignment",
      value: create(AssignmentSchema, {
        lease: { leaseId: session.leaseId, epoch: session.epoch },
        expiresAt: timestampFromDate(new Date(Date.now() + ttl)),
        session: create(SessionSchema, {
          id: session.id,
          head: session.head,
          agent: { id: "agent_1", version: 1, spec: session.spec },
        }),
        // Part of the log only, so that the rest has to be read.
        tail: session.events.slice(-3),
        slots: [
          {
            slot: "",
            digest: "0",
            tools: Object.keys(this.options.tools ?? {}).map((name) => ({
              name,
              description: `Runs ${name}.`,
              inputSchema: TOOL_SCHEMA,
            })),
          },
        ],
      }),
    });
  }

  private offerAll(): void {
    for (const session of this.sessions.values()) this.offer(session);
  }

  private harnessService(): ServiceImplementation<typeof HarnessService> {
    const work = (requests: AsyncIterable<WorkRequest>, context: RpcContext) => this.work(requests, context);
    return { work };
  }

  private async *work(requests: AsyncIterable<WorkRequest>, context: RpcContext) {
    const iterator = requests[Symbol.asyncIterator]();
    const { value: first } = await iterator.next();
    if (first?.kind.case !== "hello") throw new TendonError("INVALID_FIELD", "hello first");
    const hello = first.kind.value;
    this.hellos.push(hello);
    const connection = new WorkConnection(context, hello.instanceId, hello.capacity);
    const ttl = this.options.leaseTtlMs ?? 30_000;
    const attached: string[] = [];
    for (const { sessionId, lease, position } of hello.attach) {
      const session = this.sessions.get(sessionId);
      if (!session || session.leaseId !== lease?.leaseId || session.epoch !== lease?.epoch) continue;
      attached.push(lease.leaseId);
      session.holder = connection;
      session.known = position;
      connection.held.add(session);
    }
    const value = {
      replicaId: "rplc_test",
      leaseTtl: durationFromMs(ttl),
      renewEvery: durationFromMs(ttl / 3),
      heartbeatEvery: durationFromMs(this.options.heartbeatEveryMs ?? 5_000),
      heartbeatTimeout: durationFromMs(this.options.heartbeatTimeoutMs ?? 15_000),
      attachedLeaseIds: attached,
    };
    connection.send({ case: "welcome", value: { $typeName: "tendon.v1.HarnessWelcome", ...value } });
    this.connections.add(connection);
    for (const session of connection.held) session.push();
    this.offerAll();
    void this.readAll(connection, iterator).finally(() => connection.end());
    try {
      yield* connection.messages();
    } finally {
      this.left(connection);
    }
  }

  private async readAll(connection: WorkConnection, requests: AsyncIterator<WorkRequest>): Promise<void> {
    try {
      for (let next = await requests.next(); !next.done; next = await requests.next())
        this.take(connection, next.value);
    } catch {
      // The connection broke.
    }
  }

  private take(connection: WorkConnection, { kind }: WorkRequest): void {
    if (kind.case === "goodbye") connection.leaving = true;
    if (kind.case === "previews") {
      const { sessionId, previews } = kind.value;
      for (const preview of previews) this.previews.push({ sessionId, preview });
    }
    if (kind.case === "heartbeat") {
      const value = { sequence: kind.value.sequence, receivedSequence: kind.value.sequence };
      connection.send({ case: "heartbeat", value: { $typeName: "tendon.v1.Heartbeat", ...value } });
    }
    if (kind.case === "renew") {
      const leaseIds = kind.value.leaseIds.filter((id) =>
        [...this.sessions.values()].some((s) => s.leaseId === id),
      );
      const value = { leaseIds, sessionTokens: {} };
      connection.send({ case: "renewed", value: { $typeName: "tendon.v1.LeasesRenewed", ...value } });
    }
    if (kind.case !== "release") return;
    const { leaseId, reason, position, retryAfter } = kind.value;
    const session = [...this.sessions.values()].find((s) => s.leaseId === leaseId);
    if (session === undefined) return;
    this.free(session);
    this.releases.push({ sessionId: session.id, reason });
    if (reason === ReleaseReason.IDLE || reason === ReleaseReason.FAILED) session.rested = position;
    if (retryAfter) session.notBeforeMs = Date.now() + Number(retryAfter.seconds) * 1000;
    this.offer(session);
  }

  private free(session: Session): void {
    session.holder?.held.delete(session);
    session.leaseId = undefined;
    session.holder = undefined;
  }

  private left(connection: WorkConnection): void {
    this.connections.delete(connection);
    const leases = [...connection.held].map((session) => ({ session, leaseId: session.leaseId }));
    for (const { session } of leases) if (session.holder === connection) session.holder = undefined;
    systemClock.after(this.options.reattachMs ?? 300, () => {
      for (const { session, leaseId } of leases) {
        if (session.holder !== undefined || session.leaseId !== leaseId) continue;
        this.free(session);
        this.offer(session);
      }
    });
  }

  private sessionService(): ServiceImplementation<typeof SessionService> {
    const no = async () => {
      throw new TendonError("NOT_IMPLEMENTED", "not in this script");
    };
    const noStream = () => {
      throw new TendonError("NOT_IMPLEMENTED", "not in this script");
    };
    const limit = this.inlineLimit;
    return {
      createSession: no,
      getSession: no,
      listSessions: no,
      updateSession: no,
      archiveSession: no,
      deleteSession: no,
      wakeSession: no,
      forkSession: no,
      emitLargeEvents: no,
      exportSession: noStream,
      importSession: no,
      watchEvents: noStream,
      emitEvents: async (request) => {
        const failure = this.failAppend?.(request);
        if (failure !== undefined) throw failure;
        const session = this.session(request.sessionId);
        session.check(request.lease);
        const receipts = session.append(request.events, true);
        return { receipts, head: session.head };
      },
      getEvents: async (request) => {
        const session = this.session(request.sessionId);
        if (request.lease !== undefined) session.check(request.lease);
        const { events, hasMore } = sliceOf(session.events, request);
        const shown = request.lease ? events : events.map((event) => ({ ...event, internal: "" }));
        return { events: shown.map((event) => shortened(event, limit)), head: session.head, hasMore };
      },
      readPayload: (request) => this.readPayload(request),
    };
  }

  private async *readPayload({ sessionId, eventId, text, lease }: ReadPayloadRequest) {
    const session = this.session(sessionId);
    session.check(lease);
    const event = session.events.find(({ id }) => id === eventId)!;
    const bytes = Buffer.from(text === EventText.INTERNAL ? event.internal : event.payload);
    for (let at = 0; at < bytes.length; at += 1024) yield { chunk: bytes.subarray(at, at + 1024) };
  }

  private handService(): ServiceImplementation<typeof HandService> {
    const no = async () => {
      throw new TendonError("NOT_IMPLEMENTED", "not in this script");
    };
    return {
      provision: no,
      getHand: no,
      listHands: no,
      listHandAgents: no,
      releaseHand: no,
      handOver: no,
      copyIn: no,
      copyOut: () => {
        throw new TendonError("NOT_IMPLEMENTED", "not in this script");
      },
      execute: (request) => this.execute(request),
      cancelExecution: async ({ sessionId, executionId, lease }) => {
        this.session(sessionId).check(lease);
        const execution = this.executions.get(`${sessionId}/${executionId}`);
        if (execution === undefined) throw notFound("execution", executionId);
        execution.cancel();
        return { alreadyEnded: execution.ended };
      },
    };
  }

  private async *execute(request: ExecuteRequest) {
    const session = this.session(request.sessionId);
    session.check(request.lease);
    const key = `${session.id}/${request.executionId}`;
    const known = this.executions.get(key);
    const answered = session.events.some((e) => answeredBy(e.type, e.payload) === request.executionId);
    if (!answered && known === undefined) this.begin(session, request);
    yield { kind: { case: "bound" as const, value: { handId: "hand_1", attached: known !== undefined } } };
    await this.executions.get(key)?.done;
    const result = { isError: false, outcome: ExecutionOutcome.COMPLETED, content: "[]" };
    yield { kind: { case: "result" as const, value: result } };
  }

  private begin(session: Session, { executionId, name, input }: ExecuteRequest): void {
    const cancelled = new AbortController();
    const key = `${session.id}/${executionId}`;
    this.runs.set(key, (this.runs.get(key) ?? 0) + 1);
    const answer = (text: string, isError: boolean) => {
      if (session.events.some((e) => answeredBy(e.type, e.payload) === executionId)) return;
      const payload = { tool_use_id: executionId, content: [{ type: "text", text }], is_error: isError };
      session.append([{ id: newId("event"), type: "agent.tool_result", payload: JSON.stringify(payload) }]);
    };
    const run = async () => {
      const tool = this.options.tools?.[name];
      try {
        if (tool === undefined) return answer(`no tool ${name}`, true);
        const { text, isError = false } = await tool(JSON.parse(input), cancelled.signal);
        answer(cancelled.signal.aborted ? "cancelled" : text, cancelled.signal.aborted || isError);
      } catch (error) {
        answer(String(error), true);
      } finally {
        execution.ended = true;
      }
    };
    const execution: Execution = {
      done: Promise.resolve().then(run),
      cancel: () => cancelled.abort(),
      ended: false,
    };
    this.executions.set(key, execution);
  }
}
