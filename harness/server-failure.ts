/** What the server's failures mean to a brain. One place decides; every loop switches on the answer. */
import { status } from "@grpc/grpc-js";
import { isTendonError } from "../kit/errors.ts";

export type ServerFailure =
  /** It may pass: ask again while the lease lives. */
  | "passing"
  /** This harness is not the session's brain any more, or the session is over: stop without a word. */
  | "over"
  /** Asking again gives the same answer. */
  | "final";

export function judgeFailure(error: unknown): ServerFailure {
  if (!isTendonError(error)) return "final";
  if (error.reason === "LEASE_FENCED" || error.reason === "SESSION_ARCHIVED") return "over";
  // These say that no hand could be had, and not that the server is away.
  if (error.reason === "NO_HAND_AGENT" || error.reason.startsWith("PROVISION_")) return "final";
  switch (error.code) {
    case status.UNAVAILABLE:
    case status.DEADLINE_EXCEEDED:
    case status.CANCELLED:
    case status.INTERNAL:
    case status.UNKNOWN:
    case status.ABORTED:
      return "passing";
    case status.RESOURCE_EXHAUSTED:
      return error.reason === "LIMIT_EXCEEDED" ? "passing" : "final";
    default:
      return "final";
  }
}
