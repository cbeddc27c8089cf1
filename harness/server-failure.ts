/** What the server's failures mean to a brain. One place decides; every loop switches on the answer. */
import { isTendonError, type Reason } from "../kit/errors.ts";

export type ServerFailure =
  /** It may pass: ask again while the lease lives. */
  | "passing"
  /** Something is broken over there: ask again a few times. */
  | "broken"
  /** This harness is not the session's brain any more, or the session is over: stop without a word. */
  | "over"
  /** Asking again gives the same answer. */
  | "final";

/** In a row, before what is broken counts as final. */
export const MAX_BROKEN = 8;

const MEANING: Partial<Record<Reason, ServerFailure>> = {
  LEASE_FENCED: "over",
  SESSION_ARCHIVED: "over",
  UNAVAILABLE: "passing",
  DRAINING: "passing",
  DEADLINE_EXCEEDED: "passing",
  CANCELLED: "passing",
  LIMIT_EXCEEDED: "passing",
  INTERNAL: "broken",
};

export function judgeFailure(error: unknown): ServerFailure {
  return isTendonError(error) ? (MEANING[error.reason] ?? "final") : "final";
}
