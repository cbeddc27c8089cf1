/** What the other areas may ask of the part that knows skills. */
import type { AgentSpec } from "../../proto/gen/tendon/v1/agent_pb.js";

export interface AgentSkills {
  /** INVALID_FIELD for one that is not there, comes twice, or cannot be read for want of a tool. */
  check(spec: AgentSpec, workspaceId: string): Promise<void>;
  /**
   * The agent of a new session: each skill with the version that it has from now on, also those of agents that it may call.
   * NOT_FOUND, INVALID_FIELD.
   */
  resolve(spec: AgentSpec, workspaceId: string): Promise<AgentSpec>;
  /** The agent of a new thread, whose own skills have versions: the same for those of agents that it may call. INVALID_FIELD. */
  pinMembers(spec: AgentSpec, workspaceId: string): Promise<AgentSpec>;
}
