/** What of the log says that requests did not fit, or gave no summary, since the newest answer. Pure. */
import { countOf, isObject, type Json } from "../../event-payload.ts";

/** Kept by the runner with the end of a failed request, and given back in the history. */
export type FailureNote =
  | { readonly kind: "prompt_too_long"; readonly limit_tokens?: number }
  | { readonly kind: "no_summary" };

export interface RequestTrouble {
  /** Requests that did not fit, since the newest answer or summary. */
  readonly tooLong: number;
  /** Requests for a summary that gave none, since then. */
  readonly noSummary: number;
  /** Summaries in a row, without an answer between them. */
  readonly summaries: number;
  /** Tokens that fit, as the model API said when something did not. */
  readonly limitTokens: number | undefined;
}

export class TroubleCount implements RequestTrouble {
  tooLong = 0;
  noSummary = 0;
  summaries = 0;
  limitTokens: number | undefined;

  requestEnded(isError: boolean, internal: Json): void {
    if (!isError) {
      this.tooLong = 0;
      this.noSummary = 0;
      if (internal.stop !== "context") this.summaries = 0;
      return;
    }
    const failure = isObject(internal.failure) ? internal.failure : {};
    const note = isObject(failure.note) ? failure.note : {};
    if (note.kind === "no_summary") this.noSummary += 1;
    if (note.kind !== "prompt_too_long") return;
    this.tooLong += 1;
    const limit = countOf(note.limit_tokens);
    if (limit > 0) this.limitTokens = Math.min(limit, this.limitTokens ?? limit);
  }

  compacted(): void {
    this.summaries += 1;
    this.tooLong = 0;
    this.noSummary = 0;
  }
}
