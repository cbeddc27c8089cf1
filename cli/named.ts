/** Finds agents and environments by id, or by a name that only one of them has. */
import { StartupError } from "../kit/program.ts";
import type { Client } from "../kit/rpc/client.ts";
import type { AgentService } from "../proto/gen/tendon/v1/agent_service_pb.js";
import type { DeploymentService } from "../proto/gen/tendon/v1/deployment_service_pb.js";
import type { EnvironmentService } from "../proto/gen/tendon/v1/environment_service_pb.js";
import type { MemoryService } from "../proto/gen/tendon/v1/memory_service_pb.js";
import { CALL_WITHIN, EXIT_USAGE } from "./command.ts";

export type Agents = Pick<Client<typeof AgentService>, "listAgents">;
export type Environments = Pick<Client<typeof EnvironmentService>, "listEnvironments">;

const PAGE_SIZE = 100;
/** Looking further would be slower than naming the id. */
const MAX_PAGES = 20;
const MAX_IDS_TOLD = 5;

interface Named {
  readonly id: string;
  readonly spec?: { readonly name: string } | undefined;
}

interface Page<T> {
  readonly items: readonly T[];
  readonly nextPageToken: string;
}

/** The newest first, archived ones left out. */
export async function* liveAgents(agents: Agents) {
  yield* pages(async (page) => {
    const { agents: items, nextPageToken } = await agents.listAgents(page, CALL_WITHIN);
    return { items, nextPageToken };
  });
}

/** The newest first, archived ones left out. */
export async function* liveEnvironments(environments: Environments) {
  yield* pages(async (page) => {
    const answer = await environments.listEnvironments(page, CALL_WITHIN);
    return { items: answer.environments, nextPageToken: answer.nextPageToken };
  });
}

/** The id of what `--agent`, or an argument, names. Throws a StartupError when the name is nobody's, or of several. */
export function agentIdOf(agents: Agents, text: string): Promise<string> {
  return idOf("agent", "agent_", text, () => liveAgents(agents));
}

/** The id of what `--env`, or an argument, names. Throws a StartupError when the name is nobody's, or of several. */
export function environmentIdOf(environments: Environments, text: string): Promise<string> {
  return idOf("environment", "env_", text, () => liveEnvironments(environments));
}

/** The id of a memory store. Throws a StartupError when the name is nobody's, or of several. */
export function memoryStoreIdOf(
  memory: Pick<Client<typeof MemoryService>, "listMemoryStores">,
  text: string,
): Promise<string> {
  const all = () =>
    pages(async (page) => {
      const { memoryStores, nextPageToken } = await memory.listMemoryStores(page, CALL_WITHIN);
      return { items: memoryStores.map(({ id, name }) => ({ id, spec: { name } })), nextPageToken };
    });
  return idOf("memory store", "memstore_", text, all);
}

/** The id of a deployment. Throws a StartupError when the name is nobody's, or of several. */
export function deploymentIdOf(
  deployments: Pick<Client<typeof DeploymentService>, "listDeployments">,
  text: string,
): Promise<string> {
  const all = () =>
    pages(async (page) => {
      const { deployments: items, nextPageToken } = await deployments.listDeployments(page, CALL_WITHIN);
      return { items, nextPageToken };
    });
  return idOf("deployment", "depl_", text, all);
}

async function idOf(
  what: string,
  prefix: string,
  text: string,
  all: () => AsyncIterable<Named>,
): Promise<string> {
  if (text.startsWith(prefix)) return text;
  const found: string[] = [];
  for await (const { id, spec } of all()) if (spec?.name === text) found.push(id);
  if (found.length === 1) return found[0]!;
  if (found.length === 0) throw new StartupError(`there is no ${what} named "${text}"`, EXIT_USAGE);
  const told = found.slice(0, MAX_IDS_TOLD).join(", ");
  const more = found.length > MAX_IDS_TOLD ? ` and ${found.length - MAX_IDS_TOLD} more` : "";
  throw new StartupError(
    `${found.length} ${what}s are named "${text}"; name one by its id: ${told}${more}`,
    EXIT_USAGE,
  );
}

async function* pages<T>(
  read: (page: { pageSize: number; pageToken: string }) => Promise<Page<T>>,
): AsyncGenerator<T> {
  let pageToken = "";
  for (let page = 0; page < MAX_PAGES; page++) {
    const { items, nextPageToken } = await read({ pageSize: PAGE_SIZE, pageToken });
    yield* items;
    if (nextPageToken === "") return;
    pageToken = nextPageToken;
  }
}
