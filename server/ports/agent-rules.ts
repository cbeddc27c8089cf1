/** What an agent may be, for areas that are given one. */
import type { AgentSpec } from "../../proto/gen/tendon/v1/agent_pb.js";

export interface AgentRules {
  /** Throws INVALID_FIELD; the paths begin with `spec`. */
  check(spec: AgentSpec, workspaceId: string): Promise<void>;
}
