/** What of the log says that requests did not fit, held documents that were refused, or gave no summary, since the newest answer. Pure. */
import { countOf, isObject, type Json } from "../../event-payload.ts";
import type { DocumentTrouble } from "./documents.ts";

/** Kept by the runner with the end of a failed request, and given back in the history. */
export type FailureNote =
  | { readonly kind: "prompt_too_long"; readonly limit_tokens?: number }
  | { readonly kind: "no_summary" }
  | { readonly kind: "documents_refused"; readonly why: DocumentTrouble };

export interface RequestTrouble {
  /** Requests that did not fit, since the newest answer or summary. */
  readonly tooLong: number;
  /** Requests for a summary that gave none, since then. */
  readonly noSummary: number;
  /** Summaries in a row, without an answer between them. */
  readonly summaries: number;
  /** What the model API had against the documents of the newest request, while that is not seen to. */
  readonly documents: DocumentTrouble | undefined;
  /** Tokens that fit, as the model API said when something did not. */
  readonly limitTokens: number | undefined;
}

export class TroubleCount implements RequestTrouble {
  tooLong = 0;
  noSummary = 0;
  summaries = 0;
  documents: DocumentTrouble | undefined;
  limitTokens: number | undefined;

  requestEnded(isError: boolean, internal: Json): void {
    if (!isError) {
      this.tooLong = 0;
      this.noSummary = 0;
      this.documents = undefined;
      if (internal.stop !== "context") this.summaries = 0;
      return;
    }
    const failure = isObject(internal.failure) ? internal.failure : {};
    const note = isObject(failure.note) ? failure.note : {};
    if (note.kind === "no_summary") this.noSummary += 1;
    if (note.kind === "documents_refused") this.documents = note.why === "pages" ? "pages" : "unreadable";
    if (note.kind !== "prompt_too_long") return;
    this.tooLong += 1;
    const limit = countOf(note.limit_tokens);
    if (limit > 0) this.limitTokens = Math.min(limit, this.limitTokens ?? limit);
  }

  documentsLeftOut(): void {
    this.documents = undefined;
    this.tooLong = 0;
  }

  compacted(): void {
    this.summaries += 1;
    this.tooLong = 0;
    this.noSummary = 0;
    this.documents = undefined;
  }
}
