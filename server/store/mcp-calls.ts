/** Calls of MCP servers and of web tools, each recorded before a proxy sends it (X1). */
import type { AuditInput } from "./audit.ts";
import type { CredentialOpening, StoredCredential } from "./credentials.ts";
import type { HandEvent } from "./hands.ts";
import type { LogAdvance } from "./session-append.ts";

export interface McpSession {
  readonly workspaceId: string;
  readonly epoch: bigint;
  readonly isArchived: boolean;
  /** JSON text of the agent as the session has it. */
  readonly agent: string;
  /** JSON text of its environment's spec as it is now, where that names MCP servers behind hand agents. */
  readonly environment: string | undefined;
}

/** What a call needs besides its record; `skip` records nothing. */
export type CallNeeds =
  | { readonly kind: "skip" }
  | { readonly kind: "begin"; readonly credential: CredentialOpening | undefined };

/** The event that a call stands in the log as. */
export interface McpToolUse {
  readonly type: string;
  readonly payload: string;
}

export type BegunCall =
  | { readonly kind: "begun"; readonly credential?: StoredCredential | undefined }
  /** Begun before, and nobody has stored a result. */
  | { readonly kind: "unknown"; readonly credential?: StoredCredential | undefined }
  /** As `needs` said. */
  | { readonly kind: "skipped" }
  | { readonly kind: "finished"; readonly result: string }
  /** The tool use has a result that no call gave: an interrupt, say. */
  | { readonly kind: "answered"; readonly payload: string };

export interface McpCallStore {
  session(sessionId: string): Promise<McpSession | undefined>;
  /** JSON texts of the agents of the sessions that this thread was made by, the nearest first; none for a root. */
  agentsAbove(sessionId: string): Promise<string[]>;
  /**
   * One transaction: the session's row is locked, its epoch compared, there is no result; then the call is recorded and the
   * credential is opened. `needs` and `check` may throw. NOT_FOUND, LEASE_FENCED, SESSION_ARCHIVED.
   */
  begin(request: {
    sessionId: string;
    toolUseId: string;
    epoch: bigint;
    /** Only sessions of this workspace are there; undefined: of all. */
    workspaceId: string | undefined;
    check: (toolUse: McpToolUse) => void;
    /** Told the session as it is locked; without it the call is recorded and nothing else. */
    needs?: (session: McpSession) => CallNeeds;
  }): Promise<BegunCall>;
  /**
   * X3, one transaction: the result is stored and its event appended. The first result stands. Undefined when no such call
   * was begun in what the caller sees.
   */
  finish(request: {
    sessionId: string;
    toolUseId: string;
    workspaceId: string | undefined;
    result: string;
    event: HandEvent;
    /** Written with the result; its workspace is the session's. */
    audit?: Omit<AuditInput, "workspaceId">;
  }): Promise<{ readonly result: string; readonly advance: LogAdvance | undefined } | undefined>;
}
