/** What of the log says that requests did not fit, held attachments that were refused, or gave no summary, since the newest answer. Pure. */
import { countOf, isObject, type Json } from "../../event-payload.ts";
import type { AttachmentTrouble } from "./attachments.ts";

/** Kept by the runner with the end of a failed request, and given back in the history. */
export type FailureNote =
  | { readonly kind: "prompt_too_long"; readonly limit_tokens?: number }
  | { readonly kind: "no_summary" }
  | ({ readonly kind: "attachments_refused" } & AttachmentTrouble);

export interface RequestTrouble {
  /** Requests that did not fit, since the newest answer or summary. */
  readonly tooLong: number;
  /** Requests for a summary that gave none, since then. */
  readonly noSummary: number;
  /** Summaries in a row, without an answer between them. */
  readonly summaries: number;
  /** What the model API had against documents or images of the newest request, while that is not seen to. */
  readonly attachments: AttachmentTrouble | undefined;
  /** Tokens that fit, as the model API said when something did not. */
  readonly limitTokens: number | undefined;
}

export class TroubleCount implements RequestTrouble {
  tooLong = 0;
  noSummary = 0;
  summaries = 0;
  attachments: AttachmentTrouble | undefined;
  limitTokens: number | undefined;

  requestEnded(isError: boolean, internal: Json): void {
    if (!isError) {
      this.tooLong = 0;
      this.noSummary = 0;
      this.attachments = undefined;
      if (internal.stop !== "context") this.summaries = 0;
      return;
    }
    const failure = isObject(internal.failure) ? internal.failure : {};
    const note = isObject(failure.note) ? failure.note : {};
    if (note.kind === "no_summary") this.noSummary += 1;
    if (note.kind === "attachments_refused") this.attachments = troubleOf(note);
    if (note.kind !== "prompt_too_long") return;
    this.tooLong += 1;
    const limit = countOf(note.limit_tokens);
    if (limit > 0) this.limitTokens = Math.min(limit, this.limitTokens ?? limit);
  }

  attachmentsLeftOut(): void {
    this.attachments = undefined;
    this.tooLong = 0;
  }

  compacted(): void {
    this.summaries += 1;
    this.tooLong = 0;
    this.noSummary = 0;
    this.attachments = undefined;
  }
}

/** As the log has it. */
export function troubleOf({ of, why }: Json): AttachmentTrouble {
  return { of: of === "image" ? "image" : "document", why: why === "room" ? "room" : "unreadable" };
}
