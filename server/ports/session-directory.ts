/** Sessions as other areas see them. */
import type { Session } from "../../proto/gen/tendon/v1/session_pb.js";

export interface SessionView {
  readonly sessionId: string;
  readonly workspaceId: string;
  readonly environmentId: string;
  readonly slotEnvironmentIds: Readonly<Record<string, string>>;
  readonly message: Session;
}

export interface SessionDirectory {
  /** NOT_FOUND. */
  get(sessionId: string): Promise<SessionView>;
}
