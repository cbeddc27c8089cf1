/** Why a run made no session, in the words that clients of deployments know (pure). */
import type { Reason, TendonError } from "../../kit/errors.ts";
import type { RunFailure } from "../store/deployment-runs.ts";

/** The database is away, or somebody else's turn: nothing is known of the deployment, and it is tried again. */
const PASSING: ReadonlySet<Reason> = new Set(["UNAVAILABLE", "DEADLINE_EXCEEDED", "DRAINING", "CANCELLED"]);

const TYPES: Partial<Record<Reason, string>> = {
  ENVIRONMENT_ARCHIVED: "environment_archived_error",
  AGENT_ARCHIVED: "agent_archived_error",
  VAULT_ARCHIVED: "vault_archived_error",
  MEMORY_STORE_ARCHIVED: "memory_store_archived_error",
  LIMIT_EXCEEDED: "session_rate_limited_error",
  RATE_LIMITED: "session_rate_limited_error",
  INVALID_FIELD: "session_creation_rejected_error",
  EVENT_TYPE_NOT_ALLOWED: "session_creation_rejected_error",
  MESSAGE_TOO_LARGE: "session_creation_rejected_error",
};

/** By what there is not. */
const NOT_FOUND_TYPES: Readonly<Record<string, string>> = {
  environment: "environment_not_found_error",
  vault: "vault_not_found_error",
  file: "file_not_found_error",
  skill: "skill_not_found_error",
  "skill version": "skill_not_found_error",
};

/** They may not be there the next time; all others are, until somebody does something. */
const UNPAUSING = new Set(["session_rate_limited_error", "session_creation_rejected_error"]);

export function isPassing({ reason }: TendonError): boolean {
  return PASSING.has(reason);
}

export function runFailure(error: TendonError): RunFailure {
  const type = typeOf(error);
  return { type, message: error.message, pauses: !UNPAUSING.has(type) };
}

/** Of a bug: what it says stays inside. */
export const UNKNOWN_FAILURE: RunFailure = {
  type: "unknown_error",
  message: "the session could not be made: internal error; the server's log says more",
  pauses: true,
};

function typeOf({ reason, metadata }: TendonError): string {
  if (reason === "NOT_FOUND")
    return NOT_FOUND_TYPES[metadata.resource ?? ""] ?? "session_resource_not_found_error";
  return TYPES[reason] ?? UNKNOWN_FAILURE.type;
}
