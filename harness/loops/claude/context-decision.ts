/**
 * What this loop decides about the context of its requests, as `brain.context_changed` keeps it: in `payload` what clients
 * may know, in `internal` all that a later request is planned by. Pure.
 */
import type { Event } from "../../../proto/gen/tendon/v1/event_pb.js";
import { countOf, parseObject, stringOf } from "../../event-payload.ts";
import type { ContextChange } from "../loop.ts";
import type { AttachmentTrouble } from "./attachments.ts";
import { troubleOf } from "./request-trouble.ts";

/** Results of calls before a position are shown by their first characters alone. */
export interface TrimDecision {
  readonly kind: "trim";
  readonly beforePosition: number;
  readonly keepChars: number;
}

/** A summary stands in place of all that came before the answer to the request that began at `keepFrom`. */
export interface CompactDecision {
  readonly kind: "compact";
  /** Position of the start of a model request; 0 keeps nothing. */
  readonly keepFrom: number;
  readonly summary: string;
  /** `harness`: an extract, for want of a model that gives a summary. */
  readonly madeBy: "model" | "harness";
}

/** A line stands in place of some documents, or images, counted from 0 in the order of the messages; `to` is not among them. */
export interface AttachmentsDecision extends AttachmentTrouble {
  readonly kind: "attachments";
  readonly from: number;
  readonly to: number;
}

export type ContextDecision = TrimDecision | CompactDecision | AttachmentsDecision;

export function changeOf(decision: ContextDecision, tokensBefore: number): ContextChange {
  const estimated_tokens_before = Math.round(tokensBefore);
  if (decision.kind === "trim") {
    const { beforePosition, keepChars } = decision;
    return {
      kind: "results_trimmed",
      payload: { before_position: beforePosition, estimated_tokens_before },
      internal: { v: 1, trim: { before_position: beforePosition, keep_chars: keepChars } },
    };
  }
  if (decision.kind === "attachments") {
    const { of, from, to, why } = decision;
    return {
      kind: `${of}s_left_out`,
      payload: { [`${of}s`]: to - from, why, estimated_tokens_before },
      internal: { v: 1, attachments: { of, from, to, why } },
    };
  }
  const { keepFrom, summary, madeBy } = decision;
  return {
    kind: "compacted",
    payload: { kept_from_position: keepFrom || null, made_by: madeBy, estimated_tokens_before },
    internal: { v: 1, compact: { keep_from: keepFrom, made_by: madeBy, summary } },
  };
}

/** Undefined for what this loop has not decided, or not in a way that it knows. */
export function decisionOf(event: Event): ContextDecision | undefined {
  const { v, trim, compact, attachments } = parseObject(event.internal) as Record<
    string,
    Record<string, unknown>
  >;
  if (v !== (1 as unknown)) return undefined;
  if (trim !== undefined) {
    const { before_position, keep_chars } = trim;
    return { kind: "trim", beforePosition: countOf(before_position), keepChars: countOf(keep_chars) };
  }
  if (attachments !== undefined) {
    const { from, to } = attachments;
    return { kind: "attachments", ...troubleOf(attachments), from: countOf(from), to: countOf(to) };
  }
  const summary = stringOf(compact?.summary);
  if (compact === undefined || summary === "") return undefined;
  const madeBy = compact.made_by === "harness" ? "harness" : "model";
  return { kind: "compact", keepFrom: countOf(compact.keep_from), summary, madeBy };
}
