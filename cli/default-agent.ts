/** The agent and the environment that are meant when a command names none. */
import { StartupError } from "../kit/program.ts";
import type { Agent } from "../proto/gen/tendon/v1/agent_pb.js";
import type { Environment } from "../proto/gen/tendon/v1/environment_pb.js";
import { EXIT_USAGE } from "./command.ts";
import { TENDON } from "./command-name.ts";
import { type Agents, type Environments, liveAgents, liveEnvironments } from "./named.ts";

export const DEFAULT_AGENT_NAME = "default";

export const MAKE_DEFAULT_AGENT = `${TENDON} agent create --name ${DEFAULT_AGENT_NAME}`;
export const MAKE_DEFAULT_ENVIRONMENT = `${TENDON} env create --name default --default`;

/** The newest live agent with that name, if there is one. */
export async function agentNamed(agents: Agents, name: string): Promise<Agent | undefined> {
  for await (const agent of liveAgents(agents)) if (agent.spec?.name === name) return agent;
  return undefined;
}

export async function defaultEnvironment(environments: Environments): Promise<Environment | undefined> {
  for await (const environment of liveEnvironments(environments))
    if (environment.isDefault) return environment;
  return undefined;
}

/** Throws a StartupError when there is none. */
export async function findDefaultAgent(agents: Agents): Promise<string> {
  const agent = await agentNamed(agents, DEFAULT_AGENT_NAME);
  if (agent !== undefined) return agent.id;
  throw new StartupError(
    `there is no agent named "${DEFAULT_AGENT_NAME}": name one with --agent, or make one: ${MAKE_DEFAULT_AGENT}`,
    EXIT_USAGE,
  );
}
