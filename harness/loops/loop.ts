/**
 * The contract of a loop: the plug-in that decides what a brain does next.
 *
 * A loop proposes; the runner appends and sends. So the lease (E1), intent before effect, one result for each tool use
 * (X3), permissions, bounds and retries hold for every loop, and a loop holds nothing that must survive: whatever it
 * needs it reads from the turn's history, which is the log.
 *
 * Order: the runner has appended the span's start (and with it the inputs that the model sees for the first time), then
 * calls `run` once. It appends what comes back as one atomic batch, runs the calls until each has its result, and calls
 * `run` again on the longer history until an answer asks for nothing more. Calls for different sessions run side by
 * side; for one session never two at a time. `run` may be called again for a history that an earlier call has seen, in
 * another process: it must not do anything that hurts when done twice.
 *
 * `signal` aborts when a client interrupts, the lease is lost or the program stops; `run` then ends soon, with any
 * outcome or error: it is dropped. An error thrown otherwise is a bug: the turn ends with an internal error.
 */
import type { Clock } from "../../kit/clock.ts";
import type { Logger } from "../../kit/log.ts";
import type { Agent } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import type { ToolCatalogue } from "../tool-catalogue.ts";

export interface Loop {
  /** As agents name it. */
  readonly name: string;
  /** The model that requests of this agent go to, for the log. */
  model(agent: Agent): string;
  run(turn: LoopTurn, signal: AbortSignal): Promise<LoopOutcome>;
}

/** What a loop may know and use during one `run`. */
export interface LoopTurn {
  readonly sessionId: string;
  readonly agent: Agent;
  readonly tools: ToolCatalogue;
  /** Events that matter to a model, in log order, with `internal`. The last one is the start of the running span. */
  readonly history: readonly Event[];
  readonly clock: Clock;
  readonly log: Logger;
  /** Most milliseconds that the model may be silent in this attempt. */
  readonly maxSilenceMs: number;
  /** Shows watchers what is forming (L5). Never blocks, lossy. */
  preview(preview: LoopPreview): void;
  /** An id for an event that is about to be proposed. */
  newEventId(): string;
}

export type LoopPreview =
  | { readonly kind: "start"; readonly eventId: string; readonly type: string }
  | { readonly kind: "text"; readonly eventId: string; readonly index: number; readonly text: string };

/** How a `run` ended. */
export type LoopOutcome =
  | { readonly kind: "response"; readonly response: ProposedResponse }
  | { readonly kind: "failed"; readonly failure: ModelFailure };

/** One whole answer of a model. */
export interface ProposedResponse {
  readonly events: readonly ProposedEvent[];
  readonly stop: ResponseStop;
  readonly usage: ModelUsage;
}

/** An event of the answer. `blocks` go into `internal` and are what a later request is rebuilt from. */
export type ProposedEvent =
  | { readonly kind: "thinking"; readonly eventId: string; readonly blocks: readonly string[] }
  | {
      readonly kind: "message";
      readonly eventId: string;
      /** One text of the payload for each text block. */
      readonly texts: readonly string[];
      readonly blocks: readonly string[];
    }
  | ProposedCall;

export interface ProposedCall {
  readonly kind: "call";
  readonly eventId: string;
  /** The name that the model used. */
  readonly modelName: string;
  /** Its input as the model wrote it; not always JSON. */
  readonly inputText: string;
  /** Why the call cannot run; the model is told. */
  readonly problem: string | undefined;
  readonly blocks: readonly string[];
}

export interface ResponseStop {
  /**
   * `paused`: the same answer goes on with the next request. `cut_in_call`: the answer reached its length limit inside a
   * call. `limit`: it reached a limit elsewhere, and stands as it is.
   */
  readonly kind: "done" | "paused" | "refusal" | "cut_in_call" | "limit";
  /** The model API's own word, for the log. */
  readonly reason: string;
  /** For a refusal: what the model API says about it. */
  readonly refusal?: { readonly category: string | null; readonly explanation: string | null };
}

export interface ModelUsage {
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly cacheReadInputTokens: number;
  readonly cacheCreationInputTokens: number;
}

export const NO_USAGE: ModelUsage = {
  inputTokens: 0,
  outputTokens: 0,
  cacheReadInputTokens: 0,
  cacheCreationInputTokens: 0,
};

/** Why a model gave no whole answer. */
export interface ModelFailure {
  readonly type:
    | "model_overloaded_error"
    | "model_rate_limited_error"
    | "model_request_failed_error"
    | "billing_error";
  /** For people; holds no secret. */
  readonly message: string;
  /** Attempts that are worth making in all while the model fails this way; Infinity leaves it to the time bound. */
  readonly maxAttempts: number;
  /** What the other side asked to wait. */
  readonly retryAfterMs: number | undefined;
  /** Whether the answer had begun to arrive. */
  readonly began: boolean;
}
