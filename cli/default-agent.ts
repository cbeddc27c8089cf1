/** The agent that is meant when a command names none. */
import { StartupError } from "../kit/program.ts";
import type { Client } from "../kit/rpc/client.ts";
import type { Agent } from "../proto/gen/tendon/v1/agent_pb.js";
import type { AgentService } from "../proto/gen/tendon/v1/agent_service_pb.js";
import { CALL_WITHIN, EXIT_USAGE } from "./command.ts";

export const DEFAULT_AGENT_NAME = "default";
const PAGE_SIZE = 100;
/** Looking further would be slower than naming the agent. */
const MAX_PAGES = 20;

type Agents = Pick<Client<typeof AgentService>, "listAgents">;

/** The newest live agent with that name, if there is one. */
export async function agentNamed(agents: Agents, name: string): Promise<Agent | undefined> {
  let pageToken = "";
  for (let page = 0; page < MAX_PAGES; page++) {
    const answer = await agents.listAgents({ pageSize: PAGE_SIZE, pageToken }, CALL_WITHIN);
    const found = answer.agents.find(({ spec }) => spec?.name === name);
    if (found !== undefined || answer.nextPageToken === "") return found;
    pageToken = answer.nextPageToken;
  }
  return undefined;
}

/** Throws a StartupError when there is none. */
export async function findDefaultAgent(agents: Agents): Promise<string> {
  const agent = await agentNamed(agents, DEFAULT_AGENT_NAME);
  if (agent !== undefined) return agent.id;
  throw new StartupError(
    `there is no agent named "${DEFAULT_AGENT_NAME}": name one with --agent, or make one: tendon agent create --name ${DEFAULT_AGENT_NAME}`,
    EXIT_USAGE,
  );
}
