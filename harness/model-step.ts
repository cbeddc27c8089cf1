/**
 * One model request of a session, from its recorded start to its recorded end: what it takes in is in the log before it is
 * sent (L6), and what came of it before anybody acts on it.
 */
import type { Clock } from "../kit/clock.ts";
import type { FailureOrigin } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import type { Agent } from "../proto/gen/tendon/v1/agent_pb.js";
import type { Session } from "../proto/gen/tendon/v1/session_pb.js";
import {
  brainEvent,
  contextEvents,
  failureEvents,
  HARNESS_GONE,
  INTERRUPTED,
  idleEvents,
  requestEvents,
  responseEvents,
} from "./brain-events.ts";
import { spentBudget } from "./budget.ts";
import type { Lease } from "./lease.ts";
import type { LogWriter } from "./log-writer.ts";
import type { Loop, LoopOutcome, ProposedResponse } from "./loops/loop.ts";
import type { McpServers } from "./mcp-client/mcp-servers.ts";
import { listedEvents, troubleEvents } from "./mcp-client/mcp-tool-events.ts";
import type { NextStep } from "./next-step.ts";
import type { AnswerPermission } from "./permission/answer-permission.ts";
import type { PreviewFeed } from "./preview-feed.ts";
import { attemptSilenceMs, type RetryBounds, retryVerdict } from "./retry-policy.ts";
import type { SessionTools } from "./session-tools.ts";
import type { SessionView } from "./session-view.ts";
import type { SpeculativeHands } from "./speculative-hands.ts";
import type { TurnTrace } from "./turn-trace.ts";
import { untilInterrupted } from "./until-interrupted.ts";

export interface ModelStepSettings {
  /** Most milliseconds that a model may be silent. */
  readonly modelTimeoutMs: number;
  readonly retry: RetryBounds;
}

export interface ModelStepOptions {
  readonly session: Session;
  /** Its agent, as loops are to see it. */
  readonly noted: Agent;
  readonly loop: Loop;
  readonly lease: Lease;
  readonly view: SessionView;
  readonly writer: LogWriter;
  readonly tools: SessionTools;
  readonly mcp: McpServers;
  readonly speculation: SpeculativeHands;
  readonly permission: AnswerPermission;
  readonly feed: PreviewFeed;
  readonly trace: TurnTrace;
  readonly settings: ModelStepSettings;
  readonly clock: Clock;
  readonly log: Logger;
  /** Aborts when the program stops: nothing is waited for any more that the next holder can wait for. */
  readonly leaving: AbortSignal;
  /** Aborts when what could finish quickly has had its time, too. */
  readonly draining: AbortSignal;
}

type Ask = Extract<NextStep, { kind: "ask" }>;

/** Changes of its context that a loop may propose before it asks a model for something. */
const MAX_CONTEXT_CHANGES = 8;

export class ModelStep {
  private readonly options: ModelStepOptions;
  private readonly newId: () => string;
  /** The newest model request that this holder began. */
  private askedSpanId: string | undefined;

  constructor(options: ModelStepOptions) {
    this.options = options;
    this.newId = () => options.writer.newEventId();
  }

  /** Of a request without an answer: what this holder began was interrupted, anything else was another one's. */
  whyClosed(spanId: string): FailureOrigin {
    return spanId === this.askedSpanId ? INTERRUPTED : HARNESS_GONE;
  }

  /** Asks once. When a client interrupts it the span stays open: the next step closes it and settles the rest. */
  async ask(step: Ask): Promise<void> {
    const { clock, settings, view, writer, feed } = this.options;
    if (!(await this.listTools(Math.max(1, step.turn)))) return;
    const spanId = await this.begin(step);
    if (spanId === undefined) return;
    const { state } = view;
    const trouble = state.trouble;
    const startedMs = clock.monotonicMs();
    const outcome = await this.outcome(
      spanId,
      attemptSilenceMs(trouble, settings.modelTimeoutMs, settings.retry),
    );
    feed.flush();
    if (outcome === undefined) return;
    if (outcome.kind === "response") return this.keep(outcome.response, spanId);
    const { failure } = outcome;
    const attemptMs = clock.monotonicMs() - startedMs;
    const verdict = retryVerdict(failure, trouble, attemptMs, settings.retry, Math.random);
    await writer.append(failureEvents(spanId, failure, verdict, state, this.newId));
    if (verdict.kind === "retry") {
      await this.untilInterrupted(this.options.leaving, (signal) => clock.sleep(verdict.waitMs, signal));
    }
  }

  /** Which of its calls may run is in the log with the calls themselves, and so before anything runs. */
  private async keep(response: ProposedResponse, spanId: string): Promise<void> {
    const { permission, tools, writer } = this.options;
    const judged = await permission.judge(response, spanId);
    const { verdicts } = judged;
    const events = responseEvents(response, spanId, tools.catalogue, this.model, this.newId, verdicts);
    await writer.append([...judged.events, ...events]);
  }

  private get model(): string {
    return this.options.loop.model(this.options.session.agent!);
  }

  /** Which lists the session works with is in the log before they are used. False when a client interrupted it. */
  private async listTools(turn: number): Promise<boolean> {
    const { tools, mcp, view, writer, leaving } = this.options;
    const names = tools.serversToAsk(turn);
    if (names.length === 0) return true;
    const listed = await this.untilInterrupted(leaving, (signal) => mcp.list(names, signal));
    if (listed === undefined) return false;
    const isRunning = view.state.status === "running";
    const running = isRunning ? [] : [brainEvent(this.newId(), "session.status_running", {})];
    await writer.append([...running, ...listedEvents(listed, turn, this.newId)]);
    return true;
  }

  /** The id of the recorded start; undefined when the budget is spent, which is in the log then. */
  private async begin(step: Ask): Promise<string | undefined> {
    const { view, writer, trace } = this.options;
    const { state } = view;
    trace.asks(step, state);
    const head = state.head;
    const events = requestEvents(state, step, this.model, this.newId, trace.context);
    // Of the turn that this begins, if it begins one; its start stays the last.
    events.splice(-1, 0, ...troubleEvents(state.mcpTroubles, this.newId));
    try {
      await writer.append(events);
    } catch (error) {
      const spent = spentBudget(error);
      if (spent === undefined) throw error;
      // Whoever raises the budget meanwhile says so in the log, and must not be said before the rest that it ends.
      const idle = idleEvents({ type: "budget_reached" }, spent, state, this.newId);
      await writer.appendUnlessNews(idle, { head });
      return undefined;
    }
    const spanId = state.openSpanId;
    if (spanId === undefined) throw new Error("a model request has no recorded start");
    this.askedSpanId = spanId;
    return spanId;
  }

  /** Undefined when a client interrupted it, or when it was for the context alone and its end is in the log. */
  private async outcome(
    spanId: string,
    maxSilenceMs: number,
  ): Promise<Exclude<LoopOutcome, { kind: "context_changed" }> | undefined> {
    for (let changes = 0; ; changes++) {
      const outcome = await this.runLoop(maxSilenceMs);
      if (outcome?.kind !== "context_changed") return outcome;
      const { change, request } = outcome;
      await this.options.writer.append(contextEvents(change, request, spanId, this.model, this.newId));
      if (request !== undefined) return undefined;
      if (changes >= MAX_CONTEXT_CHANGES) throw new Error("a loop changes its context without end");
    }
  }

  private runLoop(maxSilenceMs: number): Promise<LoopOutcome | undefined> {
    const { noted, clock, log, lease, loop, view, tools, mcp, feed, speculation, trace, draining } =
      this.options;
    const turn = {
      sessionId: lease.sessionId,
      agent: noted,
      tools: tools.catalogue,
      history: view.history,
      clock,
      log,
      maxSilenceMs,
      held: lease.signal,
      preview: feed.add.bind(feed),
      newEventId: this.newId,
      callBegan: (eventId: string, modelName: string) => speculation.callBegan(eventId, modelName),
      mcpServers: () => mcp.addresses(),
    };
    return trace.modelRequest(loop.model(turn.agent), () =>
      this.untilInterrupted(draining, (signal) => loop.run(turn, signal)),
    );
  }

  private untilInterrupted<T>(
    stopping: AbortSignal,
    work: (signal: AbortSignal) => Promise<T>,
  ): Promise<T | undefined> {
    return untilInterrupted(this.options, stopping, work);
  }
}
