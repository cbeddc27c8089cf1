/** Why a connection ended: a closed set. The supervisor decides by nothing else. */
import { isTendonError, messageOf } from "../../kit/errors.ts";

export type ConnectionOutcome =
  /** It broke, the server was not there, or it fell silent: dial again after the backoff. */
  | { kind: "broken"; detail: string }
  /** The server is about to stop and said so: dial again, elsewhere if there is an elsewhere. */
  | { kind: "draining"; detail: string }
  /** The server does not know this identity: enrol again if there is a token, else ask again now and then. */
  | { kind: "unknown_identity"; detail: string }
  /** The server speaks no version of the protocol that this build does: ask again now and then. */
  | { kind: "version_unsupported"; detail: string }
  /** Another process connected with this identity, or is connected: dial again, and yield to it. */
  | { kind: "duplicated"; detail: string }
  /** The agent was revoked: never dial again. */
  | { kind: "revoked"; detail: string }
  /** The agent itself ended it. */
  | { kind: "stopped" };

/** The one judge of how an error ends a connection. */
export function outcomeOfError(error: unknown): ConnectionOutcome {
  const detail = messageOf(error);
  if (isTendonError(error, "HAND_AGENT_REVOKED")) return { kind: "revoked", detail };
  if (isTendonError(error, "HAND_AGENT_DUPLICATED")) return { kind: "duplicated", detail };
  if (isTendonError(error, "PROTOCOL_VERSION_UNSUPPORTED")) return { kind: "version_unsupported", detail };
  if (isTendonError(error, "UNAUTHENTICATED") || isTendonError(error, "ROLE_NOT_ALLOWED")) {
    return { kind: "unknown_identity", detail };
  }
  if (isTendonError(error, "DRAINING")) return { kind: "draining", detail };
  return { kind: "broken", detail };
}
