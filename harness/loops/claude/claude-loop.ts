/** The loop on the Messages API: plans a request from the log, streams the answer, proposes what is in it. */
import type { Clock } from "../../../kit/clock.ts";
import type { Loop, LoopOutcome, LoopTurn, ModelFailure, ProposedResponse } from "../loop.ts";
import { hasAttachments } from "./attachments.ts";
import { type ClaudeSettings, claudeSettings, SettingsInvalid } from "./loop-settings.ts";
import { type ModelClient, ModelFailed } from "./model-client.ts";
import { ModelWindows } from "./model-windows.ts";
import { type NextRequest, nextRequest, sizeOf } from "./next-request.ts";
import { type ModelRequest, modelOf, type RequestParts, requestParts } from "./plan.ts";
import type { FailureNote } from "./request-trouble.ts";
import { BrokenAnswer, ResponseReader } from "./response-reader.ts";
import { summaryOf } from "./summary-request.ts";

export interface ClaudeLoopOptions {
  readonly client: Pick<ModelClient, "stream" | "windowTokens">;
  readonly clock: Clock;
  /** For agents that name no model. */
  readonly defaultModel: string;
}

export function createClaudeLoop({ client, clock, defaultModel }: ClaudeLoopOptions): Loop {
  const loop = new ClaudeLoop(client, new ModelWindows(client, clock), defaultModel);
  return {
    name: "claude",
    model: (agent) => modelOf(agent, defaultModel),
    run: (turn, signal) => loop.run(turn, signal),
  };
}

class ClaudeLoop {
  private readonly client: ClaudeLoopOptions["client"];
  private readonly windows: ModelWindows;
  private readonly defaultModel: string;

  constructor(client: ClaudeLoopOptions["client"], windows: ModelWindows, defaultModel: string) {
    this.client = client;
    this.windows = windows;
    this.defaultModel = defaultModel;
  }

  async run(turn: LoopTurn, signal: AbortSignal): Promise<LoopOutcome> {
    const { agent, tools, history } = turn;
    try {
      const settings = claudeSettings(agent.spec?.loopSettings ?? "");
      const parts = requestParts({ agent, tools, history, defaultModel: this.defaultModel });
      const next = await this.next(parts, settings);
      if (next.kind === "change") return { kind: "context_changed", change: next.change };
      const outcome = await this.ask(next, turn, signal);
      return outcome instanceof ModelFailed ? failedOutcome(outcome, parts, settings) : outcome;
    } catch (error) {
      if (error instanceof SettingsInvalid) return { kind: "failed", failure: unusable(error) };
      if (error instanceof BrokenAnswer && !signal.aborted) return { kind: "failed", failure: broken(error) };
      throw error;
    }
  }

  private async next(parts: RequestParts, settings: ClaudeSettings): Promise<NextRequest> {
    const model = modelOf(parts.agent, this.defaultModel);
    const { tokens } = sizeOf(parts, ModelWindows.assumed(model));
    const window = settings.windowTokens ?? (await this.windows.of(model, tokens));
    return nextRequest(parts, sizeOf(parts, window), settings);
  }

  private async ask(
    next: Exclude<NextRequest, { kind: "change" }>,
    turn: LoopTurn,
    signal: AbortSignal,
  ): Promise<LoopOutcome | ModelFailed> {
    try {
      const response = await this.answer(next.request, next.kind === "ask", turn, signal);
      return next.kind === "ask" ? { kind: "response", response } : summarised(next, response);
    } catch (error) {
      if (error instanceof ModelFailed) return error;
      throw error;
    }
  }

  /** Watchers see an answer form, but not a summary, which is no part of the talk. */
  private async answer(
    { body }: ModelRequest,
    isShown: boolean,
    turn: LoopTurn,
    signal: AbortSignal,
  ): Promise<ProposedResponse> {
    const reader = new ResponseReader({
      newEventId: () => turn.newEventId(),
      preview: (preview) => isShown && turn.preview(preview),
      // What a summary says of calls is none.
      callBegan: (eventId, modelName) => isShown && turn.callBegan(eventId, modelName),
    });
    for await (const event of this.client.stream(body, turn.maxSilenceMs, signal)) reader.take(event);
    return reader.finish();
  }
}

function summarised(
  next: Extract<NextRequest, { kind: "summarise" }>,
  response: ProposedResponse,
): LoopOutcome {
  const summary = summaryOf(response);
  const { usage, stop } = response;
  if (summary !== undefined) {
    return { kind: "context_changed", change: next.change(summary), request: { usage, stop } };
  }
  const note: FailureNote = { kind: "no_summary" };
  const used = { model: next.request.model, usage };
  const message = `The model was asked for a summary of the conversation and gave none (${stop.reason}).`;
  return { kind: "failed", failure: { ...failed(message), used, note, isRetriedAtOnce: true } };
}

/** Where something can be left out, the next attempt asks for less, and the one after the last gets an extract. */
function failedOutcome(
  { failure, tooLong, attachments }: ModelFailed,
  { built }: RequestParts,
  { compact }: ClaudeSettings,
): LoopOutcome {
  const trouble = attachments.find(({ of }) => hasAttachments(built, of));
  if (trouble !== undefined) return goesOn(failure, { kind: "attachments_refused", ...trouble });
  if (tooLong === undefined || (compact === undefined && !hasAttachments(built, "document")))
    return { kind: "failed", failure };
  const { limitTokens } = tooLong;
  return goesOn(failure, {
    kind: "prompt_too_long",
    ...(limitTokens !== undefined && { limit_tokens: limitTokens }),
  });
}

function goesOn(failure: ModelFailure, note: FailureNote): LoopOutcome {
  return {
    kind: "failed",
    failure: { ...failure, maxAttempts: Number.POSITIVE_INFINITY, note, isRetriedAtOnce: true },
  };
}

function broken(error: BrokenAnswer): ModelFailure {
  return { ...failed(`The model's answer broke off: ${error.message}.`), began: true };
}

function unusable(error: SettingsInvalid): ModelFailure {
  const message = `The agent's settings for the claude loop cannot be used: ${error.message}.`;
  const origin = { part: "harness", reason: "LOOP_NOT_CONFIGURED" } as const;
  return { ...failed(message), type: "loop_failed_error", maxAttempts: 1, origin };
}

function failed(message: string): ModelFailure {
  return {
    type: "model_request_failed_error",
    message,
    maxAttempts: Number.POSITIVE_INFINITY,
    retryAfterMs: undefined,
    began: false,
  };
}
