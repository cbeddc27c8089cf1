/** Whether a session that was just made gets no hand, since it has variables and its hands would have no relay for them. */
import { type EnvironmentSpec, NetworkMode } from "../proto/gen/tendon/v1/environment_pb.js";
import type { Session } from "../proto/gen/tendon/v1/session_pb.js";
import { CALL_WITHIN } from "./command.ts";
import type { Api } from "./connect.ts";

/** What to say of it; undefined where all is well, or where it cannot be found out: the session is made either way. */
export async function variablesNote(
  api: Pick<Api, "vaults" | "environments">,
  { vaultIds, environmentId, slotEnvironmentIds }: Session,
): Promise<string | undefined> {
  if (vaultIds.length === 0) return undefined;
  try {
    const names = await variablesOf(api, vaultIds);
    if (names.length === 0) return undefined;
    const ids = [...new Set([environmentId, ...Object.values(slotEnvironmentIds)])];
    const found = await Promise.all(
      ids.map((id) => api.environments.getEnvironment({ environmentId: id }, CALL_WITHIN)),
    );
    const open = found
      .flatMap(({ environment }) => (environment?.spec ? [environment.spec] : []))
      .filter(isOpen);
    if (open.length === 0) return undefined;
    const environments = open.map(({ name }) => `"${name}"`).join(", ");
    return `note: the session's vaults have variables (${names.join(", ")}), and no hand is made for it in ${environments}: hands there have the machine's network, and variables need one that is none or limited (--env)`;
  } catch {
    return undefined;
  }
}

async function variablesOf({ vaults }: Pick<Api, "vaults">, vaultIds: readonly string[]): Promise<string[]> {
  const pages = await Promise.all(
    vaultIds.map((vaultId) => vaults.listCredentials({ vaultId, pageSize: 100 }, CALL_WITHIN)),
  );
  const names = pages.flatMap(({ credentials }) =>
    credentials.flatMap(({ use }) => (use?.kind.case === "environmentVariable" ? [use.kind.value.name] : [])),
  );
  return [...new Set(names)];
}

/** Where nothing is said it is the driver's default: container hands have a relay then, process hands have none. */
function isOpen({ network, driver, image }: EnvironmentSpec): boolean {
  const mode = network?.mode ?? NetworkMode.UNSPECIFIED;
  if (mode === NetworkMode.UNRESTRICTED) return true;
  return mode === NetworkMode.UNSPECIFIED && (driver === "process" || (driver === "" && image === ""));
}
