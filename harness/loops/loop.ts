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
 *
 * A loop may be around a program that has a loop of its own, which asks a model, calls tools and asks again. It lets that
 * program run from one `run` to the next: what the program's model said is proposed when it is whole, the program waits for
 * its results meanwhile, and the next `run` gives it those of the history. So each of its requests is a step here, recorded
 * before it is made, and every call goes the way of all calls. Such a program ends with `held` at the latest; what the next
 * one needs beyond the history is left in the log with `keep`.
 */
import type { Clock } from "../../kit/clock.ts";
import type { FailureOrigin } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { Agent } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import type { McpAddress } from "../mcp-relay/session-relay.ts";
import type { ToolCatalogue } from "../tool-catalogue.ts";

export interface Loop {
  /** As agents name it. */
  readonly name: string;
  /** The model that requests of this agent go to, for the log. */
  model(agent: Agent): string;
  run(turn: LoopTurn, signal: AbortSignal): Promise<LoopOutcome>;
  /**
   * Ids of the events in this history of which `run` uses no byte of an image or document any more, whatever the log says
   * later: their bytes are let go of, and they stay with the rest (hollow-event.ts). Asked when an answer has come after a
   * `brain.context_changed`; undefined: ask again after the next one. Pure. Without it a history is kept whole.
   */
  spent?(history: readonly Event[]): ReadonlySet<string> | undefined;
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
  /** Aborts when this harness does not hold the session any more: what a loop has kept for it ends. One for each lease. */
  readonly held: AbortSignal;
  /** Shows watchers what is forming (L5). Never blocks, lossy. */
  preview(preview: LoopPreview): void;
  /** An id for an event that is about to be proposed. */
  newEventId(): string;
  /**
   * The model has begun a call that will be proposed as this event, if its answer comes to its end: what the call needs may
   * be made meanwhile (H4). Never blocks; a loop that does not see calls form need not say so.
   */
  callBegan(eventId: string, modelName: string): void;
  /**
   * Where a program of the loop reaches the agent's MCP servers with a client of its own that needs no token: their resources,
   * prompts and whatever else is no call of a tool, which the runner makes. Good while `held` does not abort.
   */
  mcpServers(): Promise<readonly McpAddress[]>;
}

export type LoopPreview =
  | { readonly kind: "start"; readonly eventId: string; readonly type: string }
  | { readonly kind: "text"; readonly eventId: string; readonly index: number; readonly text: string };

/** How a `run` ended. */
export type LoopOutcome =
  | { readonly kind: "response"; readonly response: ProposedResponse }
  | { readonly kind: "failed"; readonly failure: ModelFailure }
  /**
   * Later requests are to say something else than the log alone would. The runner records it, and calls `run` again: in the
   * same span where no model was asked for it, else after the span's end.
   */
  | {
      readonly kind: "context_changed";
      readonly change: ContextChange;
      readonly request?: { readonly usage: ModelUsage; readonly stop: ResponseStop };
    };

/** A decision that the loop will plan by, in this process or another. Recorded as `brain.context_changed`. */
export interface ContextChange {
  /** For clients, as `change`. `compacted`: a summary stands in place of what came before. */
  readonly kind: "results_trimmed" | "documents_left_out" | "images_left_out" | "compacted";
  /** What else clients may know. */
  readonly payload: object;
  /** What the loop needs to know again. */
  readonly internal: object;
}

/** One whole answer of a model. */
export interface ProposedResponse {
  readonly events: readonly ProposedEvent[];
  readonly stop: ResponseStop;
  readonly usage: ModelUsage;
  /** What the loop wants to find again, for brains only: a JSON value, in the `internal` of the span's end. */
  readonly keep?: KeptMemory;
}

export interface KeptMemory {
  /** Who keeps it: a loop reads only its own. */
  readonly by: string;
  readonly value: unknown;
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
    | "billing_error"
    | "loop_failed_error";
  /** For people; holds no secret. */
  readonly message: string;
  /** Attempts that are worth making in all while the model fails this way; Infinity leaves it to the time bound. */
  readonly maxAttempts: number;
  /** What the other side asked to wait. */
  readonly retryAfterMs: number | undefined;
  /** Whether the answer had begun to arrive. */
  readonly began: boolean;
  /** The next attempt asks for something else, so there is nothing to wait for. */
  readonly isRetriedAtOnce?: boolean;
  /** For the loop itself: it finds this in the `internal` of the span's end, as `failure.note`. */
  readonly note?: object;
  /** What was used all the same, for an answer that is of no use. */
  readonly used?: { readonly model: string; readonly usage: ModelUsage };
  /** Where it failed, when that was not at the model. */
  readonly origin?: LoopFault;
}

/** A loop's own failure. */
export interface LoopFault extends FailureOrigin {
  readonly part: "harness";
  readonly reason:
    | "LOOP_NOT_CONFIGURED"
    | "LOOP_NOT_INSTALLED"
    | "LOOP_NOT_STARTED"
    | "LOOP_EXITED"
    | "LOOP_SILENT"
    | "LOOP_BAD_LINE"
    | "LOOP_LINE_TOO_LONG"
    | "LOOP_TOO_MUCH";
}
