/** What the other areas may ask when they make sessions: the checks, and the telling; the transaction is theirs. */
import type { SessionResourceInput } from "../../proto/gen/tendon/v1/session_pb.js";
import type { CreateSessionRequest } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { OwnVault } from "../store/session-vaults.ts";
import type { ChangedSession, NewSession } from "../store/sessions.ts";
import type { Principal } from "./principal.ts";

export interface SessionCreation {
  /**
   * What CreateSession would make of the request now; changes nothing. What is done with it is done by the end of `use`: until
   * then the bytes of files that its events name count against what the server may have in memory. NOT_FOUND, AGENT_ARCHIVED,
   * ENVIRONMENT_ARCHIVED, VAULT_ARCHIVED, MEMORY_STORE_ARCHIVED, NOT_CONFIGURED, INVALID_FIELD, EVENT_TYPE_NOT_ALLOWED,
   * MESSAGE_TOO_LARGE, UNAVAILABLE.
   */
  prepared<T>(
    request: CreateSessionRequest,
    whose: { readonly principal: Principal; readonly workspaceId: string },
    use: (session: NewSession) => Promise<T>,
  ): Promise<T>;
  /**
   * The tokens that come with these repositories, sealed: for this vault, or a new one. Undefined for none. The URLs are ones
   * that `prepare` has taken. INVALID_FIELD, NOT_CONFIGURED while no proxy has published a key.
   */
  sealTokens(
    resources: readonly SessionResourceInput[],
    whose: { readonly workspaceId: string; readonly actor: string; readonly vaultId?: string | undefined },
  ): Promise<OwnVault | undefined>;
  /** The session is committed: whoever waits for work or events hears of it. */
  announce(made: ChangedSession): void;
}
