/**
 * Has the work towards an outcome judged, beside the loop and for every loop. Each step is decided from the log (N1): whoever
 * takes over in the middle of an evaluation asks the grader the same again, and the log has one verdict for each.
 */
import type { Clock } from "../../kit/clock.ts";
import { failpoint } from "../../kit/failpoint.ts";
import type { Agent } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { EventInput } from "../../proto/gen/tendon/v1/event_pb.js";
import { brainEvent, exhaustedEvents, idleEvents, modelOrigin, retryingEvents } from "../brain-events.ts";
import { spentBudget } from "../budget.ts";
import type { Lease } from "../lease.ts";
import type { LogWriter } from "../log-writer.ts";
import { attemptSilenceMs, type RetryBounds, retryVerdict } from "../retry-policy.ts";
import type { SessionView } from "../session-view.ts";
import type { TextAnswer, TextModel } from "../text-model.ts";
import type { TurnTrace } from "../turn-trace.ts";
import { untilInterrupted } from "../until-interrupted.ts";
import { graderQuestion } from "./grader-request.ts";
import type { HandOutputs } from "./hand-outputs.ts";
import {
  ENDS,
  type EvaluationEnd,
  endEvent,
  failedAttempt,
  GRADER_UNREADABLE,
  judgedEnd,
  ongoingEvent,
  startEvent,
  unreadableAttempt,
} from "./outcome-events.ts";
import type { Evaluation, Outcome } from "./outcome-state.ts";
import { verdictOf } from "./verdict.ts";

export interface EvaluationSettings {
  /** Most milliseconds that a model may be silent. */
  readonly modelTimeoutMs: number;
  readonly retry: RetryBounds;
  /** Between two heartbeats. */
  readonly gradingHeartbeatMs: number;
  /** Id of the model that judges; undefined: the agent's. */
  readonly graderModel?: string | undefined;
}

export interface EvaluationsOptions {
  readonly agent: Agent;
  /** Undefined where no model is configured. */
  readonly model: TextModel | undefined;
  readonly view: SessionView;
  readonly writer: LogWriter;
  readonly clock: Clock;
  readonly settings: EvaluationSettings;
  readonly trace: TurnTrace;
  readonly lease: Lease;
  /** Aborts when the program stops: nothing is waited for any more that the next holder can wait for. */
  readonly leaving: AbortSignal;
  /** Aborts when what could finish quickly has had its time, too. */
  readonly draining: AbortSignal;
  readOutputs(signal: AbortSignal): Promise<HandOutputs>;
  /** Whether a thread of the session works; then the server tells the log once none does any more. */
  awaitsThreads(outcome: Outcome): Promise<boolean>;
}

/** Answers of one evaluation that nobody can read. */
const MAX_UNREADABLE = 3;
/** Room for a model that thinks before it answers. */
const MAX_ANSWER_TOKENS = 16_000;
/** Each halves what the grader is shown. */
const MAX_TOO_LONG = 6;

type Failed = Extract<TextAnswer, { kind: "failed" }>;

export class Evaluations {
  private readonly options: EvaluationsOptions;

  constructor(options: EvaluationsOptions) {
    this.options = options;
  }

  /** The agent has ended its turn, and its threads theirs: what it has left is kept beside the start, so that everybody judges the same. */
  async begin(outcome: Outcome): Promise<void> {
    const { agent, model, view, writer, trace, settings } = this.options;
    if (outcome.rubric === undefined) return this.end(outcome, ENDS.withoutRubric);
    if (model === undefined) return this.end(outcome, ENDS.withoutGrader);
    if (view.state.hasThreads && !(await this.threadsRest(outcome))) return;
    trace.goesOn(view.state);
    const { leaving } = this.options;
    const outputs = await untilInterrupted(this.options, leaving, (signal) =>
      this.options.readOutputs(signal),
    );
    if (outputs === undefined) return;
    const { head } = view.state;
    const modelId = settings.graderModel ?? (agent.spec?.model?.id || model.defaultModel);
    const start = startEvent(writer.newEventId(), outcome, modelId, outputs);
    try {
      await writer.append([...this.running(), start]);
    } catch (error) {
      const spent = spentBudget(error);
      if (spent === undefined) throw error;
      const idle = idleEvents({ type: "budget_reached" }, spent, view.state, this.newId);
      await writer.appendUnlessNews(idle, { head });
    }
  }

  /** False when the next step is to be decided anew: the session rests meanwhile, or something was said. */
  private async threadsRest(outcome: Outcome): Promise<boolean> {
    const { view, writer } = this.options;
    const { head } = view.state;
    if (await this.options.awaitsThreads(outcome)) {
      const reason = { type: "waiting_for_threads", event_ids: [outcome.eventId] };
      // The word that they rest may have come by now, and must not stand before a rest that waits for it.
      await writer.appendUnlessNews(idleEvents(reason, null, view.state, this.newId), { head });
      return false;
    }
    // What they said last is in the log by now, and is taken in first.
    await view.refresh();
    return view.state.head === head;
  }

  /** One request to the grader, and what comes of it. */
  async grade(outcome: Outcome, evaluation: Evaluation): Promise<void> {
    const { model, view, writer, trace, clock, settings } = this.options;
    if (model === undefined) return this.end(outcome, ENDS.withoutGrader);
    trace.goesOn(view.state);
    const running = this.running();
    if (running.length > 0) await writer.append([...running, ongoingEvent(this.newId(), outcome)]);
    const { trouble } = view.state;
    const question = {
      ...graderQuestion(outcome, evaluation, view.history),
      model: evaluation.model,
      maxTokens: MAX_ANSWER_TOKENS,
      maxSilenceMs: attemptSilenceMs(trouble, settings.modelTimeoutMs, settings.retry),
    };
    const startedMs = clock.monotonicMs();
    failpoint("harness.before_grading");
    const answer = await trace.graderRequest(evaluation.model, () =>
      untilInterrupted(this.options, this.options.draining, (signal) =>
        this.withHeartbeats(outcome, () => model.ask(question, signal), signal),
      ),
    );
    // The next step says what the interrupt has ended.
    if (answer === undefined) return;
    failpoint("harness.graded");
    if (answer.kind === "failed") return this.failed(outcome, answer, clock.monotonicMs() - startedMs);
    const verdict = verdictOf(answer);
    if (verdict !== undefined) return this.end(outcome, judgedEnd(outcome, verdict, answer.usage));
    if (evaluation.unreadable + 1 >= MAX_UNREADABLE) return this.giveUpReading(outcome, answer);
    await writer.append([ongoingEvent(this.newId(), outcome, unreadableAttempt(answer.usage))]);
  }

  private async failed(
    outcome: Outcome,
    { failure, isTooLong = false }: Failed,
    attemptMs: number,
  ): Promise<void> {
    const { view, writer, settings, clock } = this.options;
    const { state } = view;
    const isShortened = isTooLong && (outcome.evaluation?.tooLong ?? 0) < MAX_TOO_LONG;
    const judged = isShortened
      ? { ...failure, maxAttempts: Number.POSITIVE_INFINITY, isRetriedAtOnce: true }
      : failure;
    const verdict = retryVerdict(judged, state.trouble, attemptMs, settings.retry, Math.random);
    if (verdict.kind === "exhausted") {
      const explanation = `The work could not be judged: ${failure.message}`;
      const error = { type: failure.type, message: failure.message, ...modelOrigin(failure) };
      const end = endEvent(this.newId(), outcome, { result: "failed", explanation });
      return writer.append([end, ...exhaustedEvents(error, state, this.newId)]);
    }
    const { waitMs, elapsedMs } = verdict;
    const attempt = failedAttempt(failure, elapsedMs, waitMs, isTooLong);
    const told = isShortened ? [] : retryingEvents(failure, waitMs, this.newId);
    await writer.append([ongoingEvent(this.newId(), outcome, attempt), ...told]);
    await untilInterrupted(this.options, this.options.leaving, (signal) => clock.sleep(waitMs, signal));
  }

  private async giveUpReading(
    outcome: Outcome,
    { usage }: Extract<TextAnswer, { kind: "answer" }>,
  ): Promise<void> {
    const { view, writer } = this.options;
    const message = `The grader's last ${MAX_UNREADABLE} answers could not be read as a verdict.`;
    const end = endEvent(this.newId(), outcome, { result: "failed", explanation: message, usage });
    const error = { type: "model_request_failed_error", message, ...GRADER_UNREADABLE };
    await writer.append([end, ...exhaustedEvents(error, view.state, this.newId)]);
  }

  private async end(outcome: Outcome, end: EvaluationEnd): Promise<void> {
    await this.options.writer.append([...this.running(), endEvent(this.newId(), outcome, end)]);
  }

  /** Says from time to time that the work goes on. The last one is in the log before anything else is. */
  private async withHeartbeats<T>(outcome: Outcome, work: () => Promise<T>, signal: AbortSignal): Promise<T> {
    const { clock, writer, settings } = this.options;
    let beating: Promise<void> | undefined;
    const beat = () => {
      beating ??= writer
        .append([ongoingEvent(this.newId(), outcome)])
        // Who cannot append does not hold the session any more, and finds out with the verdict.
        .catch(() => {})
        .finally(() => {
          beating = undefined;
        });
    };
    const stop = clock.every(settings.gradingHeartbeatMs, beat);
    signal.addEventListener("abort", stop, { once: true });
    try {
      return await work();
    } finally {
      stop();
      signal.removeEventListener("abort", stop);
      await beating;
    }
  }

  private running(): EventInput[] {
    const isRunning = this.options.view.state.status === "running";
    return isRunning ? [] : [brainEvent(this.newId(), "session.status_running", {})];
  }

  private readonly newId = (): string => this.options.writer.newEventId();
}
