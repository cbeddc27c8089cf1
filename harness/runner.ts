/**
 * Runs one session under one lease: reads the log, does what `nextStep` says, and appends what came of it, until only a
 * client can go on.
 *
 * N1 A step is decided from the log alone. Every append changes the log before the next decision, so a holder that dies
 *    anywhere leaves a log that the next one goes on from.
 * N2 Only the runner appends and sends (E1). An effect follows its recorded intent; a result is used once it is in the log.
 * N3 When the lease is over everything stops without a word; when the program stops, the session goes to another harness.
 * N4 Whatever fails here stays here: a bug ends this turn, and no other session notices.
 */
import type { Clock } from "../kit/clock.ts";
import { type FailureOrigin, messageOf } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import type { Tracing } from "../kit/trace.ts";
import { type AgentSpec, OnInterrupt, QueuedMessages } from "../proto/gen/tendon/v1/agent_pb.js";
import type { Event } from "../proto/gen/tendon/v1/event_pb.js";
import { type Assignment, ReleaseReason } from "../proto/gen/tendon/v1/harness_service_pb.js";
import {
  awaitEvents,
  brainEvent,
  contextEvents,
  deadSpanEnd,
  errorResult,
  exhaustedEvents,
  failureEvents,
  HARNESS_GONE,
  INTERRUPTED,
  INTERRUPTED_TEXT,
  idleEvents,
  LEFT_RUNNING_TEXT,
  requestEvents,
  responseEvents,
  type SessionFailure,
} from "./brain-events.ts";
import { BRAIN_TOOLS } from "./brain-tools/registry.ts";
import { spentBudget } from "./budget.ts";
import { CallRunner } from "./call-runner.ts";
import { type Lease, LeaseEnded } from "./lease.ts";
import { LogWriter } from "./log-writer.ts";
import type { Loop, LoopOutcome } from "./loops/loop.ts";
import { McpServers } from "./mcp-client/mcp-servers.ts";
import { listedEvents } from "./mcp-client/mcp-tool-events.ts";
import type { SendToProxy } from "./mcp-client/proxy-request.ts";
import { withMemoryNote } from "./memory-note.ts";
import { isRunnable, type NextStep, nextStep, type StepSettings } from "./next-step.ts";
import { PreviewFeed } from "./preview-feed.ts";
import { withRepositoryNote } from "./repository-note.ts";
import { attemptSilenceMs, type RetryBounds, retryVerdict } from "./retry-policy.ts";
import { ServerCalls } from "./server-calls.ts";
import type { ServerClients } from "./server-clients.ts";
import { SessionTools } from "./session-tools.ts";
import { SessionView } from "./session-view.ts";
import { withSkillNote } from "./skill-note.ts";
import { SpeculativeHands } from "./speculative-hands.ts";
import { TurnTrace } from "./turn-trace.ts";
import type { Release, WorkStream } from "./work-stream.ts";

export interface RunnerSettings {
  /** Most milliseconds that a model may be silent. */
  readonly modelTimeoutMs: number;
  readonly retry: RetryBounds;
  /** Answers with calls that one turn may hold. */
  readonly maxRounds: number;
}

export interface RunnerOptions {
  readonly assignment: Assignment;
  readonly lease: Lease;
  readonly loop: Loop;
  readonly server: ServerClients;
  readonly work: Pick<WorkStream, "preview">;
  readonly settings: RunnerSettings;
  readonly clock: Clock;
  readonly log: Logger;
  readonly tracing: Tracing;
  /** The way to proxies. */
  readonly sendToProxy: SendToProxy;
  /** Aborts when the program stops and what could finish quickly has had its time. */
  readonly draining: AbortSignal;
}

/** A client interrupted what was going on. */
class Interrupted extends Error {
  override readonly name = "Interrupted";
}

const MAX_CUT_OFFS = 3;
const MAX_COMPACTIONS = 3;
/** Changes of its context that a loop may propose before it asks a model for something. */
const MAX_CONTEXT_CHANGES = 8;
const UNRECORDED_RETRY_MS = 5_000;

export class Runner {
  readonly view: SessionView;
  private readonly options: RunnerOptions;
  private readonly spec: AgentSpec | undefined;
  private readonly steps: StepSettings;
  private readonly tools: SessionTools;
  private readonly mcp: McpServers;
  private readonly writer: LogWriter;
  private readonly callRunner: CallRunner;
  private readonly speculation: SpeculativeHands;
  private readonly feed: PreviewFeed;
  private readonly newId: () => string;
  private readonly trace: TurnTrace;
  /** The newest model request that this holder began. */
  private askedSpanId: string | undefined;
  /** The program stops: nothing long is begun any more, and nothing is waited for that goes on without this brain. */
  private readonly leaving = new AbortController();

  constructor(options: RunnerOptions) {
    const { assignment, lease, server, clock, work, settings } = options;
    this.options = options;
    this.spec = assignment.session?.agent?.spec;
    this.steps = {
      takeQueuedEachStep: this.spec?.queuedMessages === QueuedMessages.NEXT_STEP,
      maxRounds: settings.maxRounds,
      maxCutOffs: MAX_CUT_OFFS,
      maxCompactions: MAX_COMPACTIONS,
    };
    const { tracing } = options;
    this.trace = new TurnTrace({ tracing, sessionId: lease.sessionId, epoch: lease.proof.epoch });
    const calls = new ServerCalls(lease, clock, () => this.trace.headers);
    this.view = new SessionView({ sessions: server.sessions, calls, lease, clock });
    this.writer = new LogWriter(server.sessions, calls, lease, this.view);
    this.newId = () => this.writer.newEventId();
    this.tools = new SessionTools(this.spec, assignment.slots, this.view.state);
    this.mcp = new McpServers({
      proxyUrl: assignment.proxyUrl,
      names: this.spec?.mcpServers.map(({ name }) => name) ?? [],
      send: options.sendToProxy,
      lease,
      view: this.view,
      clock,
      traceHeaders: () => this.trace.headers,
    });
    this.callRunner = new CallRunner({
      server,
      mcp: this.mcp,
      agent: assignment.session!.agent!,
      resources: assignment.session!.resources,
      brainTools: BRAIN_TOOLS,
      lease,
      view: this.view,
      writer: this.writer,
      clock,
      log: options.log,
      trace: this.trace,
    });
    this.speculation = new SpeculativeHands({
      hands: server.hands,
      lease,
      view: this.view,
      catalogue: this.tools.catalogue,
      log: options.log,
    });
    this.feed = new PreviewFeed(clock, (previews) => work.preview(lease, previews));
  }

  /** Resolves with how the lease is to be given back, or undefined when it is over. Never rejects. */
  async run(): Promise<Release | undefined> {
    const { lease, log } = this.options;
    try {
      const { tail, session } = this.options.assignment;
      await this.view.load(tail, session?.head ?? 0n);
      return await this.runSteps();
    } catch (error) {
      if (lease.isOver || error instanceof LeaseEnded) return undefined;
      if (this.isLeaving) return { reason: ReleaseReason.DRAINING };
      log.error({ err: error, sessionId: lease.sessionId }, "a session failed with an internal error");
      return this.failInternally();
    } finally {
      this.feed.flush();
      this.trace.end();
    }
  }

  /** The program stops: a running answer may end until `draining` aborts, everything else is left to the next harness. */
  stopSoon(): void {
    this.leaving.abort(new Error("the harness stops"));
  }

  /** By the agent's choice an interrupt ends the waiting for calls, not the calls. */
  private get leavesCalls(): boolean {
    return this.spec?.onInterrupt === OnInterrupt.LEAVE_CALLS;
  }

  private get isLeaving(): boolean {
    return this.leaving.signal.aborted || this.options.draining.aborted;
  }

  private async runSteps(): Promise<Release> {
    for (;;) {
      const step = nextStep(this.view.state, this.steps);
      if (step.kind === "rest") return { reason: ReleaseReason.IDLE, ...this.answersDue() };
      const isLong = step.kind === "ask" || step.kind === "run_calls" || step.kind === "interrupt";
      if (this.isLeaving && isLong) return { reason: ReleaseReason.DRAINING };
      await this.take(step);
    }
  }

  /** Of the calls that wait for clients, when the first has waited long enough, as far as this clock can tell. */
  private answersDue(): { answersDueAfterMs?: number } {
    const { announcedCalls, announcedAtMs, openCalls } = this.view.state;
    const calls = [...openCalls.values()].filter(({ eventId }) => announcedCalls?.has(eventId));
    const timeouts = calls.map((call) => call.answerTimeoutMs).filter((ms) => ms > 0);
    if (timeouts.length === 0) return {};
    const waitedMs = announcedAtMs === undefined ? 0 : this.options.clock.nowMs() - announcedAtMs;
    return { answersDueAfterMs: Math.max(0, Math.min(...timeouts) - Math.max(0, waitedMs)) };
  }

  private async take(step: Exclude<NextStep, { kind: "rest" }>): Promise<void> {
    const { writer, newId } = this;
    const { state } = this.view;
    switch (step.kind) {
      case "close_span":
        return writer.append([deadSpanEnd(newId(), step.spanId, this.whyClosed(step.spanId))]);
      case "interrupt":
        return this.interrupt();
      case "run_calls":
        return this.runCalls();
      case "await_others":
        return writer.append(awaitEvents(step, state, newId));
      case "ask":
        return this.ask(step);
      case "give_up":
        return writer.append(exhaustedEvents(giveUpError(step.why, this.steps), state, newId));
      case "end_turn": {
        const details = step.reason === "refusal" ? { type: "refusal", ...state.refusal } : null;
        return writer.append(idleEvents({ type: step.reason }, details, state, newId));
      }
    }
  }

  /** A request without an answer: what this holder began was interrupted, anything else was another one's. */
  private whyClosed(spanId: string): FailureOrigin {
    return spanId === this.askedSpanId ? INTERRUPTED : HARNESS_GONE;
  }

  /** Which lists the session works with is in the log before they are used. False when a client interrupted it. */
  private async listTools(turn: number): Promise<boolean> {
    const names = this.tools.serversToAsk(turn);
    if (names.length === 0) return true;
    const ask = (signal: AbortSignal) => this.mcp.list(names, signal);
    const listed = await this.untilInterrupted(this.leaving.signal, ask);
    if (listed === undefined) return false;
    const isRunning = this.view.state.status === "running";
    const running = isRunning ? [] : [brainEvent(this.newId(), "session.status_running", {})];
    await this.writer.append([...running, ...listedEvents(listed, turn, this.newId)]);
    return true;
  }

  /** One model request, from its recorded start to its recorded end. */
  private async ask(step: Extract<NextStep, { kind: "ask" }>): Promise<void> {
    const { clock, loop, settings } = this.options;
    if (!(await this.listTools(Math.max(1, step.turn)))) return;
    const { state } = this.view;
    const agent = this.options.assignment.session!.agent!;
    const model = loop.model(agent);
    this.trace.asks(step, state);
    const head = state.head;
    try {
      await this.writer.append(requestEvents(state, step, model, this.newId, this.trace.context));
    } catch (error) {
      const spent = spentBudget(error);
      if (spent === undefined) throw error;
      // Whoever raises the budget meanwhile says so in the log, and must not be said before the rest that it ends.
      const idle = idleEvents({ type: "budget_reached" }, spent, state, this.newId);
      return this.writer.appendUnlessNews(idle, { head });
    }
    const spanId = state.openSpanId;
    if (spanId === undefined) throw new Error("a model request has no recorded start");
    this.askedSpanId = spanId;
    const trouble = state.trouble;
    const startedMs = clock.monotonicMs();
    const maxSilenceMs = attemptSilenceMs(trouble, settings.modelTimeoutMs, settings.retry);
    let outcome = await this.runLoop(maxSilenceMs);
    for (let changes = 0; outcome?.kind === "context_changed"; changes++) {
      const { change, request } = outcome;
      await this.writer.append(contextEvents(change, request, spanId, model, this.newId));
      if (request !== undefined) return;
      if (changes >= MAX_CONTEXT_CHANGES) throw new Error("a loop changes its context without end");
      outcome = await this.runLoop(maxSilenceMs);
    }
    this.feed.flush();
    // The next step closes the span and settles the rest.
    if (outcome === undefined) return;
    if (outcome.kind === "response") {
      return this.writer.append(
        responseEvents(outcome.response, spanId, this.tools.catalogue, model, this.newId),
      );
    }
    const { failure } = outcome;
    const attemptMs = clock.monotonicMs() - startedMs;
    const verdict = retryVerdict(failure, trouble, attemptMs, settings.retry, Math.random);
    await this.writer.append(failureEvents(spanId, failure, verdict, state, this.newId));
    if (verdict.kind === "retry") {
      await this.untilInterrupted(this.leaving.signal, (signal) => clock.sleep(verdict.waitMs, signal));
    }
  }

  /** Undefined when a client interrupted it. */
  private runLoop(maxSilenceMs: number): Promise<LoopOutcome | undefined> {
    const { assignment, clock, log, lease, loop } = this.options;
    const { agent, resources } = assignment.session!;
    const turn = {
      sessionId: lease.sessionId,
      agent: withRepositoryNote(withMemoryNote(withSkillNote(agent!), resources), resources),
      tools: this.tools.catalogue,
      history: this.view.history,
      clock,
      log,
      maxSilenceMs,
      held: lease.signal,
      preview: this.feed.add.bind(this.feed),
      newEventId: this.newId,
      callBegan: (eventId: string, modelName: string) => this.speculation.callBegan(eventId, modelName),
      mcpServers: () => this.mcp.addresses(),
    };
    return this.trace.modelRequest(loop.model(turn.agent), () =>
      this.untilInterrupted(this.options.draining, (signal) => loop.run(turn, signal)),
    );
  }

  private async runCalls(): Promise<void> {
    this.trace.goesOn(this.view.state);
    if (this.view.state.status !== "running") {
      await this.writer.append([brainEvent(this.newId(), "session.status_running", {})]);
    }
    await this.untilInterrupted(this.leaving.signal, (signal) => this.callRunner.run(signal));
    const { state } = this.view;
    const { waiting: waitIds, withWorkers: workerIds } = this.callRunner;
    if (waitIds.length + workerIds.length === 0 || state.interrupts.length > 0) return;
    const callIds = [...state.openCalls.keys()].filter((id) => !waitIds.includes(id));
    await this.writer.append(awaitEvents({ callIds, waitIds, workerIds }, state, this.newId));
  }

  /**
   * Runs `work` until it is done or a client interrupts; then the result is undefined. Rejects when the lease is over or
   * the program stops. What `work` does after its signal aborted is dropped.
   */
  private async untilInterrupted<T>(
    stopping: AbortSignal,
    work: (signal: AbortSignal) => Promise<T>,
  ): Promise<T | undefined> {
    const { lease } = this.options;
    const interrupt = new AbortController();
    const look = () => {
      if (this.view.state.interrupts.length > 0) interrupt.abort(new Interrupted("a client interrupted"));
    };
    const stopLooking = this.view.onChange(look);
    const signal = AbortSignal.any([lease.signal, stopping, interrupt.signal]);
    look();
    try {
      return await raceSignal(work(signal), signal);
    } catch (error) {
      if (!signal.aborted) throw error;
      if (signal.reason instanceof Interrupted) return undefined;
      throw signal.reason;
    } finally {
      stopLooking();
    }
  }

  /** Ends the turn at once: running calls are cancelled, every call gets its result, and nobody asks the model (L6, X3). */
  private async interrupt(): Promise<void> {
    const { view, newId } = this;
    if (!this.leavesCalls) {
      await this.callRunner.cancelAll([...view.state.openCalls.values()].filter(isRunnable));
    }
    await this.writer.appendAnswers(() => {
      const { state } = view;
      const interrupts = state.interrupts.map(({ eventId }) => eventId);
      const keeps = state.interrupts.some(({ keepsQueued }) => keepsQueued);
      const isOver = state.status === "idle" && state.openCalls.size === 0 && !state.atBudget;
      const inTurn = !isOver || state.announcedCalls !== undefined || (keeps && state.waiting.length > 0);
      const consumed = { event_ids: interrupts, turn: state.turn };
      const marker = brainEvent(newId(), "brain.inputs_consumed", consumed);
      if (!inTurn) return [marker];
      const info = { interrupted: { event_id: interrupts[0] }, ...(keeps && { keeps_queued: true }) };
      return [
        ...this.interruptedResults(),
        marker,
        ...idleEvents({ type: "end_turn" }, null, state, newId, info),
      ];
    });
  }

  private interruptedResults(failure: FailureOrigin = INTERRUPTED) {
    return [...this.view.state.openCalls.values()].map((call) => {
      const isLeft = this.leavesCalls && call.kind === "hand" && isRunnable(call);
      return errorResult(this.newId(), call, isLeft ? LEFT_RUNNING_TEXT : INTERRUPTED_TEXT, failure);
    });
  }

  /** A bug: the turn ends, its text stays inside, and the next message starts afresh. */
  private async failInternally(): Promise<Release | undefined> {
    const { lease, log } = this.options;
    try {
      await this.writer.appendAnswers(() => {
        const { state } = this.view;
        const { openSpanId: spanId } = state;
        const bug: FailureOrigin = { part: "harness", reason: "INTERNAL" };
        const open = spanId === undefined ? [] : [deadSpanEnd(this.newId(), spanId, bug)];
        const error = { type: "unknown_error", message: "internal error", ...bug };
        return [...open, ...this.interruptedResults(bug), ...exhaustedEvents(error, state, this.newId)];
      });
    } catch (error) {
      if (lease.isOver) return undefined;
      log.error(
        { sessionId: lease.sessionId, problem: messageOf(error) },
        "could not record an internal error",
      );
      // What the log does not say is not done: someone tries again.
      return { reason: ReleaseReason.RETRY_LATER, retryAfterMs: UNRECORDED_RETRY_MS };
    }
    return { reason: ReleaseReason.FAILED };
  }

  /** Others have appended to the log. */
  advanced(head: bigint, events: readonly Event[]): void {
    this.view.advanced(head, events);
  }
}

/** Settles with `promise`, or rejects as soon as the signal aborts; what comes of the promise then is dropped. */
function raceSignal<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const aborted = () => reject(signal.reason);
    if (signal.aborted) aborted();
    else signal.addEventListener("abort", aborted, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", aborted));
  });
}

function giveUpError(why: "rounds" | "cut_offs" | "compactions", settings: StepSettings): SessionFailure {
  const { maxRounds, maxCutOffs, maxCompactions } = settings;
  if (why === "compactions") {
    const message = `The context was summarised ${maxCompactions} times in a row, and still leaves no room for an answer.`;
    return { type: "compaction_limit_reached_error", message, part: "model", reason: "TOO_MANY_COMPACTIONS" };
  }
  const message =
    why === "rounds"
      ? `The turn has run ${maxRounds} rounds of tool calls, which is the most that one turn may.`
      : `The model's last ${maxCutOffs} answers were each cut off inside a tool call, so none of those calls ran.`;
  const reason = why === "rounds" ? "TOO_MANY_ROUNDS" : "TOO_MANY_CUT_OFFS";
  return { type: "tool_use_limit_reached_error", message, part: "model", reason };
}
