/** What sessions are made of, as options: those that a command makes, and those that a deployment will make. */
import type { Command } from "commander";
import { StartupError } from "../kit/program.ts";
import { addBudgetOptions, type BudgetOptions, budgetOf } from "./budget-options.ts";
import { EXIT_USAGE } from "./command.ts";
import type { Api } from "./connect.ts";
import { findDefaultAgent } from "./default-agent.ts";
import { type MemoryOptions, memoryResources } from "./memory-options.ts";
import { agentIdOf, environmentIdOf } from "./named.ts";
import { repositoryInput } from "./repo-option.ts";
import { parseCount, parsePair, parseRepeated } from "./words.ts";

export interface SessionPartsOptions extends BudgetOptions, MemoryOptions {
  agent?: string;
  agentVersion?: number;
  env?: string;
  metadata?: Record<string, string>;
  vault?: string[];
  repo?: string[];
  repoPush?: string[];
}

export function addSessionPartsOptions(command: Command): Command {
  return addBudgetOptions(command)
    .option("--agent <agent>", 'id or name; left out: the newest agent named "default"')
    .option("--agent-version <n>", "left out: the latest now", parseCount(1, 2 ** 31 - 1))
    .option("--env <environment>", "id or name; left out: the default environment")
    .option("--metadata <name=value>", "may be given several times", parsePair)
    .option(
      "--vault <vault>",
      "id of a vault, in order of priority; may be given several times",
      parseRepeated,
    )
    .option("--memory <store>", "id or name of a memory store; may be given several times", parseRepeated)
    .option("--memory-read-only <store>", "the same, to be read alone", parseRepeated)
    .option(
      "--repo <url[#ref@path]>",
      "git repository that hands get a clone of; ref: a branch, tag:<name> or a commit; path: where, below the working directory; may be given several times",
      parseRepeated,
    )
    .option(
      "--repo-push <glob>",
      "branches of these repositories that may be pushed to; left out: all that their credentials may; may be given several times",
      parseRepeated,
    );
}

/** Asks the server for what is given by name. */
export async function sessionPartsOf(api: Api, options: SessionPartsOptions) {
  const { agent, env } = options;
  const budget = budgetOf(options);
  return {
    agentId: await (agent === undefined ? findDefaultAgent(api.agents) : agentIdOf(api.agents, agent)),
    agentVersion: options.agentVersion ?? 0,
    environmentId: env === undefined ? "" : await environmentIdOf(api.environments, env),
    vaultIds: options.vault ?? [],
    resources: await resourcesOf(api, options),
    metadata: options.metadata ?? {},
    ...(budget && { budget }),
  };
}

/** Those that were given, by the names that they have in the contract. */
export async function givenSessionParts(api: Api, options: SessionPartsOptions) {
  const { agent, agentVersion, env, vault, metadata } = options;
  const budget = budgetOf(options);
  const resources = await resourcesOf(api, options);
  if (resources.length === 0 && options.repoPush !== undefined)
    throw new StartupError("--repo-push goes with --repo", EXIT_USAGE);
  return {
    ...(agent !== undefined && { agent_id: { agentId: await agentIdOf(api.agents, agent) } }),
    ...(agentVersion !== undefined && { agent_version: { agentVersion } }),
    ...(env !== undefined && {
      environment_id: { environmentId: await environmentIdOf(api.environments, env) },
    }),
    ...(vault !== undefined && { vault_ids: { vaultIds: vault } }),
    ...(resources.length > 0 && { resources: { resources } }),
    ...(metadata !== undefined && { metadata: { metadata } }),
    ...(budget && { budget: { budget } }),
  };
}

async function resourcesOf(api: Api, options: SessionPartsOptions) {
  const { repo = [], repoPush } = options;
  return [
    ...(await memoryResources(api.memory, options)),
    ...repo.map((url) => repositoryInput(url, repoPush)),
  ];
}
