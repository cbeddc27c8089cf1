/**
 * The loop on the Messages API: plans a request from the log, streams the answer, proposes what is in it. While a model
 * answers, what it was asked is in memory once besides the history, as the bytes that are sent.
 */
import type { Clock } from "../../../kit/clock.ts";
import type { Loop, LoopOutcome, LoopTurn, ModelFailure, ProposedResponse } from "../loop.ts";
import { ATTACHMENT_TYPES, type AttachmentType, hasAttachments, spentAttachments } from "./attachments.ts";
import { buildHistory } from "./history.ts";
import { type ClaudeSettings, claudeSettings, SettingsInvalid } from "./loop-settings.ts";
import { type ModelClient, ModelFailed } from "./model-client.ts";
import { ModelWindows } from "./model-windows.ts";
import { type NextRequest, nextRequest, sizeOf } from "./next-request.ts";
import { modelOf, requestParts } from "./plan.ts";
import type { FailureNote } from "./request-trouble.ts";
import { BrokenAnswer, ResponseReader } from "./response-reader.ts";
import { summaryOf } from "./summary-request.ts";

export interface ClaudeLoopOptions {
  readonly client: Pick<ModelClient, "stream" | "windowTokens">;
  readonly clock: Clock;
  /** For agents that name no model. */
  readonly defaultModel: string;
}

/** A request as it is sent, and what is to be known of it when it fails. */
interface Sent {
  readonly model: string;
  readonly bytes: Uint8Array;
  /** What it holds. */
  readonly attachments: readonly AttachmentType[];
  /** Whether a summary may take the place of what is too long. */
  readonly isSummarised: boolean;
}

type Summarising = Extract<NextRequest, { kind: "summarise" }>;
type Planned =
  | Extract<NextRequest, { kind: "change" }>
  | (Sent & { readonly kind: "ask" })
  | (Sent & Omit<Summarising, "request">);
type PlannedRequest = Exclude<Planned, { kind: "change" }>;

export function createClaudeLoop({ client, clock, defaultModel }: ClaudeLoopOptions): Loop {
  const loop = new ClaudeLoop(client, new ModelWindows(client, clock), defaultModel);
  return {
    name: "claude",
    model: (agent) => modelOf(agent, defaultModel),
    run: (turn, signal) => loop.run(turn, signal),
    spent: (history) => spentAttachments(buildHistory(history, () => "")),
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
    try {
      const settings = claudeSettings(turn.agent.spec?.loopSettings ?? "");
      const planned = await this.planned(turn, settings);
      if (planned.kind === "change") return { kind: "context_changed", change: planned.change };
      const outcome = await this.ask(planned, turn, signal);
      return outcome instanceof ModelFailed ? failedOutcome(outcome, planned) : outcome;
    } catch (error) {
      if (error instanceof SettingsInvalid) return { kind: "failed", failure: unusable(error) };
      if (error instanceof BrokenAnswer && !signal.aborted) return { kind: "failed", failure: broken(error) };
      throw error;
    }
  }

  /** Nothing of what the request was put together from is held by what this gives. */
  private async planned({ agent, tools, history }: LoopTurn, settings: ClaudeSettings): Promise<Planned> {
    const { defaultModel } = this;
    const model = modelOf(agent, defaultModel);
    const parts = requestParts({ agent, tools, history, defaultModel });
    const { tokens } = sizeOf(parts, ModelWindows.assumed(model));
    const window = settings.windowTokens ?? (await this.windows.of(model, tokens));
    const next = nextRequest(parts, sizeOf(parts, window), settings);
    if (next.kind === "change") return next;
    const attachments = ATTACHMENT_TYPES.filter((of) => hasAttachments(parts.built, of));
    const isSummarised = settings.compact !== undefined;
    const { request, ...more } = next;
    return { ...more, model: request.model, bytes: Buffer.from(request.body), attachments, isSummarised };
  }

  private async ask(
    planned: PlannedRequest,
    turn: LoopTurn,
    signal: AbortSignal,
  ): Promise<LoopOutcome | ModelFailed> {
    try {
      const response = await this.answer(planned, turn, signal);
      return planned.kind === "ask" ? { kind: "response", response } : summarised(planned, response);
    } catch (error) {
      if (error instanceof ModelFailed) return error;
      throw error;
    }
  }

  /** Watchers see an answer form, but not a summary, which is no part of the talk. */
  private async answer(
    { kind, bytes }: PlannedRequest,
    turn: LoopTurn,
    signal: AbortSignal,
  ): Promise<ProposedResponse> {
    const isShown = kind === "ask";
    const reader = new ResponseReader({
      newEventId: () => turn.newEventId(),
      preview: (preview) => isShown && turn.preview(preview),
      // What a summary says of calls is none.
      callBegan: (eventId, modelName) => isShown && turn.callBegan(eventId, modelName),
    });
    for await (const event of this.client.stream(bytes, turn.maxSilenceMs, signal)) reader.take(event);
    return reader.finish();
  }
}

function summarised(
  planned: Extract<Planned, { kind: "summarise" }>,
  response: ProposedResponse,
): LoopOutcome {
  const summary = summaryOf(response);
  const { usage, stop } = response;
  if (summary !== undefined) {
    return { kind: "context_changed", change: planned.change(summary), request: { usage, stop } };
  }
  const note: FailureNote = { kind: "no_summary" };
  const used = { model: planned.model, usage };
  const message = `The model was asked for a summary of the conversation and gave none (${stop.reason}).`;
  return { kind: "failed", failure: { ...failed(message), used, note, isRetriedAtOnce: true } };
}

/** Where something can be left out, the next attempt asks for less, and the one after the last gets an extract. */
function failedOutcome(
  { failure, tooLong, attachments }: ModelFailed,
  { attachments: held, isSummarised }: PlannedRequest,
): LoopOutcome {
  const trouble = attachments.find(({ of }) => held.includes(of));
  if (trouble !== undefined) return goesOn(failure, { kind: "attachments_refused", ...trouble });
  if (tooLong === undefined || (!isSummarised && !held.includes("document")))
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
