/** What the other areas may ask when they make sessions: the checks, and the telling; the transaction is theirs. */
import type { CreateSessionRequest } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { ChangedSession, NewSession } from "../store/sessions.ts";
import type { Principal } from "./principal.ts";

export interface SessionCreation {
  /**
   * What CreateSession would make of the request now. Changes nothing. NOT_FOUND, AGENT_ARCHIVED, ENVIRONMENT_ARCHIVED,
   * VAULT_ARCHIVED, MEMORY_STORE_ARCHIVED, NOT_CONFIGURED, INVALID_FIELD, EVENT_TYPE_NOT_ALLOWED, MESSAGE_TOO_LARGE.
   */
  prepare(request: CreateSessionRequest, principal: Principal, workspaceId: string): Promise<NewSession>;
  /** The session is committed: whoever waits for work or events hears of it. */
  announce(made: ChangedSession): void;
}
