/** Sessions that would get no hand, because they have variables and their hands would have no relay to put the values in on. */
import { invalidField } from "../../kit/errors.ts";
import type { Agent } from "../../proto/gen/tendon/v1/agent_pb.js";
import { type Environment, NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import type { CredentialStore } from "../store/credentials.ts";
import type { EnvironmentStore } from "../store/environments.ts";
import type { NewSession } from "../store/sessions.ts";

/** Those whose hands run programs, which variables are for. What hands of other drivers are is for their agents to say. */
const WITH_PROGRAMS: ReadonlySet<string> = new Set(["", "docker", "process"]);

export interface VariableCheckDeps {
  readonly credentials: Pick<CredentialStore, "variableNames">;
  readonly environments: Pick<EnvironmentStore, "find">;
}

/**
 * INVALID_FIELD for a session whose vaults have variables, and whose agent has hands in an environment that says itself that they
 * have no relay. What is not known before a hand is there is told by its first call: what a driver does where an environment says
 * nothing, variables that the vaults are given later, and the hands of other agents that become threads.
 */
export async function checkVariables(
  { credentials, environments }: VariableCheckDeps,
  { vaultIds, workspaceId }: Pick<NewSession, "vaultIds" | "workspaceId">,
  {
    agent,
    environmentId,
    slotEnvironmentIds,
  }: { agent: Agent } & Pick<NewSession, "environmentId" | "slotEnvironmentIds">,
): Promise<void> {
  if (vaultIds.length === 0) return;
  const ids = (agent.spec?.tools ?? []).flatMap(({ kind }) =>
    kind.case === "handToolset" ? [slotEnvironmentIds[kind.value.slot] ?? environmentId] : [],
  );
  const found = await Promise.all([...new Set(ids)].map((id) => environments.find(id)));
  const open = found.find((environment) => environment !== undefined && hasNoRelay(environment));
  if (open === undefined) return;
  const names = await credentials.variableNames(vaultIds, workspaceId);
  if (names.length === 0) return;
  throw invalidField(
    "vault_ids",
    `the vaults have variables (${names.join(", ")}), whose values are put in on the way through a hand's relay; hands of the environment "${open.spec?.name}" reach the network by themselves and have none: choose an environment whose network is none or limited, or leave the vault out`,
  );
}

/** As far as the environment says so itself. */
function hasNoRelay({ spec }: Environment): boolean {
  if (spec === undefined || spec.selfHosted || !WITH_PROGRAMS.has(spec.driver)) return false;
  const mode = spec.network?.mode ?? NetworkMode.UNSPECIFIED;
  return mode === NetworkMode.UNRESTRICTED || (mode === NetworkMode.UNSPECIFIED && spec.driver === "process");
}
