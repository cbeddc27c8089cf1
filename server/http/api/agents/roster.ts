/** The agents that others may call, read to be shown with them: each once, by id and version. */
import { isTendonError } from "../../../../kit/errors.ts";
import type { Agent, AgentSpec } from "../../../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../../../proto/gen/tendon/v1/agent_service_pb.js";
import type { ServiceCaller } from "../service-caller.ts";

/** Version 0 is the newest. Undefined for one that the caller may not see. */
export type FindMember = (id: string, version: number) => Agent | undefined;

/** For callers that show no rosters. */
export const NO_MEMBERS: FindMember = () => undefined;

/** All that these agents may call. Workers may not see agents, and find none. */
export async function membersOf(
  services: ServiceCaller,
  specs: readonly (AgentSpec | undefined)[],
): Promise<FindMember> {
  const found = new Map<string, Agent>();
  for (const { kind } of specs.flatMap((spec) => spec?.multiagent?.agents ?? [])) {
    if (kind.case !== "agent" || found.has(keyOf(kind.value.id, kind.value.version))) continue;
    const { id: agentId, version } = kind.value;
    try {
      const { agent } = await services.call(AgentService.method.getAgent, { agentId, version });
      found.set(keyOf(agentId, version), agent!);
    } catch (error) {
      if (isTendonError(error, "ROLE_NOT_ALLOWED")) return NO_MEMBERS;
      if (!isTendonError(error, "NOT_FOUND")) throw error;
    }
  }
  return (id, version) => found.get(keyOf(id, version));
}

function keyOf(id: string, version: number): string {
  return `${id} ${version}`;
}
