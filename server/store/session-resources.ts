/** What sessions were given, changed while they live. */
import type { SessionResource } from "../../proto/gen/tendon/v1/session_pb.js";
import type { FileCopy } from "./files.ts";
import type { RequestIdClaim } from "./request-ids.ts";
import type { OwnVault, OwnVaultPlace } from "./session-vaults.ts";

export interface SessionResourceStore {
  /**
   * Adds a file with its copy; `check` is told what the session has, and what it throws refuses. A repeat returns what the
   * first added. NOT_FOUND, SESSION_ARCHIVED, REQUEST_ID_REUSED.
   */
  addFile(request: {
    readonly sessionId: string;
    readonly workspaceId: string;
    readonly resource: SessionResource;
    readonly copy: FileCopy;
    readonly check: (there: readonly SessionResource[]) => void;
    readonly request: RequestIdClaim;
  }): Promise<SessionResource>;
  /** With its copy. NOT_FOUND, SESSION_ARCHIVED, INVALID_FIELD for what is no file. */
  removeFile(sessionId: string, resourceId: string): Promise<void>;
  /** What a token of the session's for this destination has to be sealed for. */
  ownVault(sessionId: string, destination: string): Promise<OwnVaultPlace>;
  /**
   * Gives a repository the token that `vault` holds, in place of the one it has. NOT_FOUND, SESSION_ARCHIVED, VERSION_MISMATCH
   * when vault or credential are others than `ownVault` said.
   */
  setToken(request: {
    readonly sessionId: string;
    readonly resourceId: string;
    readonly vault: OwnVault;
    readonly atMs: number;
  }): Promise<SessionResource>;
}
