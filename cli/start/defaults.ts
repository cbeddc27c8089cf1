/** The environment and the agent that a new installation begins with. Made once; what somebody changed stays changed. */
import { create } from "@bufbuild/protobuf";
import { isTendonError } from "../../kit/errors.ts";
import { AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import { CALL_WITHIN } from "../command.ts";
import type { Api } from "../connect.ts";
import { agentNamed, DEFAULT_AGENT_NAME, defaultEnvironment } from "../default-agent.ts";

export interface Defaults {
  readonly agentId: string;
  readonly environmentId: string;
}

const SYSTEM =
  "You are a helpful agent. You have a hand: a workspace on a computer, in which your tools run commands and read and write files.";

export async function ensureDefaults(api: Api): Promise<Defaults> {
  const [environmentId, agentId] = await Promise.all([ensureEnvironment(api), ensureAgent(api)]);
  return { environmentId, agentId };
}

async function ensureEnvironment(api: Api): Promise<string> {
  const existing = await defaultEnvironment(api.environments);
  if (existing !== undefined) return existing.id;
  const spec = create(EnvironmentSpecSchema, {
    name: "default",
    description: "Hands on the machine of a hand agent.",
  });
  const request = { spec, makeDefault: true };
  return repeatSafely("default-environment", async (requestId) => {
    const { environment } = await api.environments.createEnvironment({ ...request, requestId }, CALL_WITHIN);
    return environment!.archivedAt === undefined ? environment!.id : undefined;
  });
}

async function ensureAgent(api: Api): Promise<string> {
  const existing = await agentNamed(api.agents, DEFAULT_AGENT_NAME);
  if (existing !== undefined) return existing.id;
  const spec = create(AgentSpecSchema, {
    name: DEFAULT_AGENT_NAME,
    description: "Uses all tools of its hand.",
    system: SYSTEM,
    tools: [{ kind: { case: "handToolset", value: {} } }],
  });
  return repeatSafely("default-agent", async (requestId) => {
    const { agent } = await api.agents.createAgent({ spec, requestId }, CALL_WITHIN);
    return agent!.archivedAt === undefined ? agent!.id : undefined;
  });
}

/** Two starts at once make one thing; one that was archived, or made by another build, is no answer and made anew. */
async function repeatSafely(
  what: string,
  make: (requestId: string) => Promise<string | undefined>,
): Promise<string> {
  try {
    const made = await make(`tendon-start-${what}`);
    if (made !== undefined) return made;
  } catch (error) {
    if (!isTendonError(error, "REQUEST_ID_REUSED")) throw error;
  }
  return (await make(""))!;
}
