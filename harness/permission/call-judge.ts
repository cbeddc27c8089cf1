/**
 * Has a model decide which calls may run, where their policy is `auto`. What cannot be judged is held for a client; only
 * where money is the reason is it refused. Nothing here is written to the log: whoever asks does that, before anything runs.
 */
import type { Clock } from "../../kit/clock.ts";
import type { FailureOrigin } from "../../kit/errors.ts";
import { modelOrigin } from "../brain-events.ts";
import { type ModelUsage, NO_USAGE } from "../loops/loop.ts";
import type { TextAnswer, TextModel } from "../text-model.ts";
import { ALLOWED, type CallVerdict, HELD, HIGH_RISK, NOT_JUDGED } from "./call-verdict.ts";
import { judgeAnswer } from "./judge-answer.ts";
import { JUDGE_RULES, type JudgeContext, type JudgedCall, judgeQuestion } from "./judge-question.ts";

export interface CallJudgeOptions {
  readonly model: TextModel;
  /** Id of the model that judges; undefined: the agent's. */
  readonly modelId: string | undefined;
  readonly clock: Clock;
  /** Milliseconds before a model that failed is asked again. */
  readonly retryMs: number;
}

/** What became of one call. */
export interface Judgement {
  readonly verdict: CallVerdict;
  /** In a sentence, for people; may be empty. */
  readonly why: string;
  /** Undefined when no model was asked. */
  readonly asked?: { readonly model: string; readonly usage: ModelUsage };
  /** Why the model gave no verdict, when it failed. */
  readonly failure?: FailureOrigin;
}

/** Calls of one answer that are judged; more are held. */
export const MAX_JUDGED_CALLS = 32;
/** Models that are asked side by side. */
const AT_ONCE = 4;
/** For one call, with a second attempt. */
const CALL_MS = 30_000;
/** For all calls of one answer. */
const ANSWER_MS = 90_000;
const ATTEMPTS = 2;
const MAX_RETRY_MS = 5_000;
/** Room for a model that thinks before it answers. */
const MAX_TOKENS = 2_000;

export class CallJudge {
  private readonly options: CallJudgeOptions;

  constructor(options: CallJudgeOptions) {
    this.options = options;
  }

  /** The model that calls of an agent with this model are judged by. */
  modelFor(agentModel: string): string {
    return this.options.modelId ?? (agentModel || this.options.model.defaultModel);
  }

  /**
   * Calls `judged` once for each call, as soon as it is decided. Rejects with the signal's reason when that aborts: what has
   * been told by then stands.
   */
  async judge(
    calls: readonly JudgedCall[],
    context: JudgeContext,
    model: string,
    signal: AbortSignal,
    judged: (call: JudgedCall, judgement: Judgement) => void,
  ): Promise<void> {
    for (const call of calls.slice(MAX_JUDGED_CALLS)) {
      judged(call, held(`more than ${MAX_JUDGED_CALLS} calls in one answer`));
    }
    const waiting = calls.slice(0, MAX_JUDGED_CALLS);
    const late = new AbortController();
    const cancel = this.options.clock.after(ANSWER_MS, () => late.abort(new Error("late")));
    const work = async () => {
      for (let call = waiting.shift(); call !== undefined; call = waiting.shift()) {
        judged(call, await this.judgeCall(call, context, model, late.signal, signal));
      }
    };
    try {
      await Promise.all(Array.from({ length: AT_ONCE }, work));
    } finally {
      cancel();
      // Where one gives up, the others have nobody to tell.
      waiting.length = 0;
    }
  }

  private async judgeCall(
    call: JudgedCall,
    context: JudgeContext,
    model: string,
    late: AbortSignal,
    signal: AbortSignal,
  ): Promise<Judgement> {
    const text = judgeQuestion(call, context);
    if (text === undefined) return held("its input is too large to be judged");
    if (late.aborted) return held("the other calls took all the time that there is");
    const tooLate = new AbortController();
    const cancel = this.options.clock.after(CALL_MS, () => tooLate.abort(new Error("late")));
    const inTime = AbortSignal.any([late, tooLate.signal, signal]);
    try {
      return await this.askTwice(text, model, inTime);
    } catch (error) {
      signal.throwIfAborted();
      if (!inTime.aborted) throw error;
      const failure = { part: "model", reason: "MODEL_REQUEST_FAILED" } as const;
      return { ...held("there was no verdict in time"), asked: { model, usage: NO_USAGE }, failure };
    } finally {
      cancel();
    }
  }

  private async askTwice(text: string, model: string, signal: AbortSignal): Promise<Judgement> {
    const { model: texts, clock, retryMs } = this.options;
    for (let attempt = 1; ; attempt++) {
      const question = { model, system: JUDGE_RULES, text, maxTokens: MAX_TOKENS, maxSilenceMs: CALL_MS };
      const answer = await texts.ask(question, signal);
      const failed = answer.kind === "failed" ? answer.failure : undefined;
      if (failed === undefined || attempt >= Math.min(ATTEMPTS, failed.maxAttempts)) {
        return judgementOf(answer, model);
      }
      await clock.sleep(Math.min(MAX_RETRY_MS, Math.max(retryMs, failed.retryAfterMs ?? 0)), signal);
    }
  }
}

function judgementOf(answer: TextAnswer, model: string): Judgement {
  if (answer.kind === "failed") {
    const { failure } = answer;
    const verdict = failure.type === "billing_error" ? NOT_JUDGED : HELD;
    const asked = { model, usage: NO_USAGE };
    return { verdict, why: failure.message, asked, failure: modelOrigin(failure) };
  }
  const asked = { model, usage: answer.usage };
  const said = judgeAnswer(answer);
  if (said === undefined) return { ...held("the answer was no verdict"), asked };
  const verdict = { allow: ALLOWED, deny: HIGH_RISK, ask: HELD }[said.verdict];
  return { verdict, why: said.why, asked };
}

function held(why: string): Judgement {
  return { verdict: HELD, why };
}
