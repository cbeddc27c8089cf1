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
import { notedAgent } from "./agent-notes.ts";
import { answersDue } from "./answers-due.ts";
import { awaitEvents, brainEvent, deadSpanEnd, exhaustedEvents, idleEvents } from "./brain-events.ts";
import { BRAIN_TOOLS } from "./brain-tools/registry.ts";
import { budgetFields } from "./budget.ts";
import { CallRunner } from "./call-runner.ts";
import { gaveUpEvents } from "./gave-up-events.ts";
import { type HistoryRoom, type HistoryShare, NoRoom } from "./history-room.ts";
import { interruptEvents, interruptedResults } from "./interrupt-events.ts";
import { type Lease, LeaseEnded } from "./lease.ts";
import { LogWriter } from "./log-writer.ts";
import type { Loop } from "./loops/loop.ts";
import { McpServers } from "./mcp-client/mcp-servers.ts";
import type { SendToProxy } from "./mcp-client/proxy-request.ts";
import { ModelStep, type ModelStepSettings } from "./model-step.ts";
import { isRunnable, type NextStep, nextStep, type StepSettings } from "./next-step.ts";
import { type EvaluationSettings, Evaluations } from "./outcome/evaluations.ts";
import { handOutputs } from "./outcome/hand-outputs.ts";
import { ENDS, outcomeEnd } from "./outcome/outcome-events.ts";
import { AnswerPermission } from "./permission/answer-permission.ts";
import type { CallJudge } from "./permission/call-judge.ts";
import { PreviewFeed } from "./preview-feed.ts";
import { ServerCalls } from "./server-calls.ts";
import type { ServerClients } from "./server-clients.ts";
import { SessionTools } from "./session-tools.ts";
import { SessionView } from "./session-view.ts";
import { SpeculativeHands } from "./speculative-hands.ts";
import type { TextModel } from "./text-model.ts";
import { TurnTrace } from "./turn-trace.ts";
import { untilInterrupted } from "./until-interrupted.ts";
import { WebCaller } from "./web/web-caller.ts";
import type { Release, WorkStream } from "./work-stream.ts";

export interface RunnerSettings extends ModelStepSettings, EvaluationSettings {
  /** Answers with calls that one turn may hold. */
  readonly maxRounds: number;
}

export interface RunnerOptions {
  readonly assignment: Assignment;
  readonly lease: Lease;
  readonly loop: Loop;
  /** Judges outcomes. Undefined where no model is configured. */
  readonly textModel: TextModel | undefined;
  readonly server: ServerClients;
  readonly work: Pick<WorkStream, "preview">;
  readonly settings: RunnerSettings;
  readonly judge: CallJudge | undefined;
  readonly clock: Clock;
  readonly log: Logger;
  readonly tracing: Tracing;
  /** The way to proxies. */
  readonly sendToProxy: SendToProxy;
  /** Aborts when the program stops and what could finish quickly has had its time. */
  readonly draining: AbortSignal;
  /** The memory that histories may take. */
  readonly room: HistoryRoom;
}

const MAX_CUT_OFFS = 3;
const MAX_COMPACTIONS = 3;
const UNRECORDED_RETRY_MS = 5_000;
/** Not begun any more by a program that stops. */
const LONG: ReadonlySet<NextStep["kind"]> = new Set([
  "ask",
  "run_calls",
  "interrupt",
  "begin_evaluation",
  "grade",
]);

export class Runner {
  readonly view: SessionView;
  private readonly options: RunnerOptions;
  private readonly spec: AgentSpec | undefined;
  private readonly steps: StepSettings;
  private readonly calls: ServerCalls;
  private readonly writer: LogWriter;
  private readonly callRunner: CallRunner;
  private readonly modelStep: ModelStep;
  private readonly feed: PreviewFeed;
  private readonly evaluations: Evaluations;
  private readonly newId: () => string;
  private readonly trace: TurnTrace;
  /** The program stops: nothing long is begun any more, and nothing is waited for that goes on without this brain. */
  private readonly leaving = new AbortController();
  private readonly share: HistoryShare;

  constructor(options: RunnerOptions) {
    const { assignment, lease, loop, server, clock, work, settings } = options;
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
    this.calls = calls;
    this.share = options.room.enter(lease.sessionId, () => this.stopSoon());
    const { share } = this;
    const spent = loop.spent?.bind(loop);
    this.view = new SessionView({
      sessions: server.sessions,
      calls,
      lease,
      clock,
      share,
      leaving: this.leaving.signal,
      ...(spent && { spent }),
    });
    this.writer = new LogWriter(server.sessions, calls, lease, this.view);
    this.newId = () => this.writer.newEventId();
    const tools = new SessionTools(assignment, this.view.state);
    const mcp = this.mcpServers();
    this.callRunner = this.createCallRunner(mcp);
    this.feed = new PreviewFeed(clock, (previews) => work.preview(lease, previews));
    this.modelStep = this.createModelStep(tools, mcp);
    this.evaluations = this.createEvaluations();
  }

  private mcpServers(): McpServers {
    const { assignment, sendToProxy: send, lease, clock } = this.options;
    const names = this.spec?.mcpServers.map(({ name }) => name) ?? [];
    const traceHeaders = () => this.trace.headers;
    return new McpServers({
      proxyUrl: assignment.proxyUrl,
      names,
      send,
      lease,
      view: this.view,
      clock,
      traceHeaders,
    });
  }

  private createCallRunner(mcp: McpServers): CallRunner {
    const { assignment, server, lease, clock, log } = this.options;
    const { agent, resources } = assignment.session!;
    return new CallRunner({
      server,
      mcp,
      web: new WebCaller(this.options, this.view),
      agent: agent!,
      resources,
      brainTools: BRAIN_TOOLS,
      lease,
      view: this.view,
      writer: this.writer,
      clock,
      log,
      trace: this.trace,
    });
  }

  private createModelStep(tools: SessionTools, mcp: McpServers): ModelStep {
    const { assignment, server, loop, lease, settings, judge, clock, log, draining } = this.options;
    const { view, writer, feed, trace } = this;
    const { catalogue } = tools;
    const session = assignment.session!;
    const agent = session.agent!;
    return new ModelStep({
      session,
      noted: notedAgent(this.options.assignment),
      loop,
      lease,
      view,
      writer,
      tools,
      mcp,
      speculation: new SpeculativeHands({ hands: server.hands, lease, view, catalogue, log }),
      permission: new AnswerPermission({ judge, agent, lease, view, writer, tools, trace, draining }),
      feed,
      trace,
      settings,
      clock,
      log,
      leaving: this.leaving.signal,
      draining,
    });
  }

  private createEvaluations(): Evaluations {
    const { assignment, server, lease, textModel: model, settings, clock, draining } = this.options;
    const { view, writer, trace } = this;
    return new Evaluations({
      agent: assignment.session!.agent!,
      model,
      lease,
      view,
      writer,
      trace,
      settings,
      clock,
      leaving: this.leaving.signal,
      draining,
      readOutputs: (signal) => handOutputs({ server, lease, slots: view.state.handSlots }, signal),
      awaitsThreads: async ({ eventId: outcomeEventId }) => {
        const request = { sessionId: lease.sessionId, lease: lease.proof, outcomeEventId };
        return (await this.calls.repeat((options) => server.threads.waitForTree(request, options))).pending;
      },
    });
  }

  /** Resolves with how the lease is to be given back, or undefined when it is over. Never rejects. */
  async run(): Promise<Release | undefined> {
    const { lease, log } = this.options;
    try {
      const { tail, session } = this.options.assignment;
      await this.view.load(tail, session?.head ?? 0n);
      // The log tells of changes alone. A thread's budget is that of its root.
      if (session?.rootSessionId === "") this.view.state.budget ??= budgetFields(session.budget);
      return await this.runSteps();
    } catch (error) {
      if (lease.isOver || error instanceof LeaseEnded) return undefined;
      if (this.isLeaving || error instanceof NoRoom) return this.passedOn;
      log.error({ err: error, sessionId: lease.sessionId }, "a session failed with an internal error");
      return this.failInternally();
    } finally {
      this.feed.flush();
      this.trace.end();
      this.share.close();
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

  /** Since this holder got the session its agent was changed: who takes it next gets the new one. */
  private get hasOldAgent(): boolean {
    return this.view.state.agentChangedAt > (this.options.assignment.session?.head ?? 0n);
  }

  private async runSteps(): Promise<Release> {
    for (;;) {
      const step = this.possible(nextStep(this.view.state, this.steps));
      if (step.kind === "rest")
        return { reason: ReleaseReason.IDLE, ...answersDue(this.view.state, this.options.clock.nowMs()) };
      const passesOn = this.isLeaving || (step.kind === "ask" && this.hasOldAgent);
      if (passesOn && LONG.has(step.kind)) return this.passedOn;
      await this.take(step);
    }
  }

  /** To another harness; where this one has no room for it, others come first. */
  private get passedOn(): Release {
    const isStopping = this.options.draining.aborted;
    if (!this.share.leaves || isStopping) return { reason: ReleaseReason.DRAINING };
    return { reason: ReleaseReason.RETRY_LATER, retryAfterMs: 0, lacksRoom: true };
  }

  /** Nobody can be asked about a history that has no room anywhere; all else goes on without it. */
  private possible(step: NextStep): NextStep {
    const isAsking = step.kind === "ask" || step.kind === "grade";
    return isAsking && this.view.isTooLarge ? { kind: "give_up", why: "history" } : step;
  }

  private async take(step: Exclude<NextStep, { kind: "rest" }>): Promise<void> {
    const { writer, newId } = this;
    const { state } = this.view;
    switch (step.kind) {
      case "close_span":
        return writer.append([deadSpanEnd(newId(), step.spanId, this.modelStep.whyClosed(step.spanId))]);
      case "interrupt":
        return this.interrupt();
      case "run_calls":
        return this.runCalls();
      case "await_others":
        return writer.append(awaitEvents(step, state, newId));
      case "ask":
        return this.modelStep.ask(step);
      case "begin_evaluation":
        return this.evaluations.begin(step.outcome);
      case "grade":
        return this.evaluations.grade(step.outcome, step.evaluation);
      case "give_up":
        return writer.append(
          gaveUpEvents(step.why, { ...this.steps, maxBytes: this.share.maxBytes }, state, newId),
        );
      case "end_turn": {
        const isRefusal = step.reason === "refusal";
        const details = isRefusal ? { type: "refusal", ...state.refusal } : null;
        const ended = isRefusal ? outcomeEnd(state, ENDS.refused, newId) : [];
        return writer.append([...ended, ...idleEvents({ type: step.reason }, details, state, newId)]);
      }
    }
  }

  private async runCalls(): Promise<void> {
    this.trace.goesOn(this.view.state);
    if (this.view.state.status !== "running") {
      await this.writer.append([brainEvent(this.newId(), "session.status_running", {})]);
    }
    await untilInterrupted({ lease: this.options.lease, view: this.view }, this.leaving.signal, (signal) =>
      this.callRunner.run(signal),
    );
    const { state } = this.view;
    const { waiting: waitIds, withWorkers: workerIds } = this.callRunner;
    if (waitIds.length + workerIds.length === 0 || state.interrupts.length > 0) return;
    const callIds = [...state.openCalls.keys()].filter((id) => !waitIds.includes(id));
    await this.writer.append(awaitEvents({ callIds, waitIds, workerIds }, state, this.newId));
  }

  /** Ends the turn at once: running calls are cancelled, every call gets its result, and nobody asks the model (L6, X3). */
  private async interrupt(): Promise<void> {
    const { view, newId } = this;
    if (!this.leavesCalls) {
      await this.callRunner.cancelAll([...view.state.openCalls.values()].filter(isRunnable));
    }
    await this.writer.appendAnswers(() => interruptEvents(view.state, this.leavesCalls, newId));
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
        const isJudged = state.outcome?.evaluation !== undefined;
        const ended = isJudged ? outcomeEnd(state, ENDS.broken, this.newId) : [];
        const results = interruptedResults(state, this.leavesCalls, this.newId, bug);
        return [...open, ...ended, ...results, ...exhaustedEvents(error, state, this.newId)];
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
