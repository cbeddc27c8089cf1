/** What sessions are made of, as options: those that a command makes, and those that a deployment will make. */
import type { Command } from "commander";
import { addBudgetOptions, type BudgetOptions, budgetOf } from "./budget-options.ts";
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
  requestId?: string;
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
    )
    .option("--request-id <id>", "makes repeating this command safe");
}

/** Asks the server for what is given by name. */
export async function sessionPartsOf(api: Api, options: SessionPartsOptions) {
  const { agent, env, repo = [], repoPush } = options;
  const budget = budgetOf(options);
  return {
    agentId: await (agent === undefined ? findDefaultAgent(api.agents) : agentIdOf(api.agents, agent)),
    agentVersion: options.agentVersion ?? 0,
    environmentId: env === undefined ? "" : await environmentIdOf(api.environments, env),
    vaultIds: options.vault ?? [],
    resources: [
      ...(await memoryResources(api.memory, options)),
      ...repo.map((url) => repositoryInput(url, repoPush)),
    ],
    metadata: options.metadata ?? {},
    ...(budget && { budget }),
  };
}
