/** Questions to a model that are no part of a session's talk: one text goes there, one text comes back. */
import type { ModelFailure, ModelUsage, ResponseStop } from "./loops/loop.ts";

export interface TextQuestion {
  readonly model: string;
  /** What the model is to do. */
  readonly system: string;
  /** What it is to do that with. */
  readonly text: string;
  /** Most tokens of the answer. */
  readonly maxTokens: number;
  /** Most milliseconds that the model may be silent. */
  readonly maxSilenceMs: number;
}

export type TextAnswer =
  | {
      readonly kind: "answer";
      /** All text of the answer; empty when it has something else than text in it, such as a call. */
      readonly text: string;
      readonly stop: ResponseStop;
      readonly usage: ModelUsage;
    }
  | {
      readonly kind: "failed";
      readonly failure: ModelFailure;
      /** The question does not fit into the model's window. */
      readonly isTooLong?: boolean;
    };

export interface TextModel {
  /** For questions that name no model of their own. */
  readonly defaultModel: string;
  /** Asks once. Rejects with the signal's reason when that aborts, and else only for a bug. */
  ask(question: TextQuestion, signal: AbortSignal): Promise<TextAnswer>;
}
