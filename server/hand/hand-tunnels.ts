/** Which connections of a hand its agent's relay carries to the proxy. Only a sorting: `tunnel/` decides at each again. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { HandTunnelsSchema } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { HandResource } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { CredentialUse } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { HandRecord } from "../store/hands.ts";
import type { HandDeps } from "./deps.ts";
import { resourcesOf } from "./hand-messages.ts";

type HandTunnels = MessageInitShape<typeof HandTunnelsSchema>;

const MAX_EGRESS_HOSTS = 320;

/** Undefined for a hand of which nothing goes to a proxy. */
export async function tunnelsOf(
  { store, servesVariables }: Pick<HandDeps, "store" | "servesVariables">,
  hand: HandRecord,
): Promise<HandTunnels | undefined> {
  if (hand.sessionId === undefined) return undefined;
  const variables = servesVariables === true ? await store.credentials.variables(hand.sessionId) : [];
  return wantedTunnels(
    resourcesOf(hand),
    variables.map(({ credential }) => credential.use),
  );
}

/** Of a hand with these repositories, in a session with these variables (pure). */
export function wantedTunnels(
  resources: readonly HandResource[],
  uses: readonly (CredentialUse | undefined)[],
): HandTunnels | undefined {
  const git = resources.some(({ kind }) => kind.case === "gitRepository");
  const hosts = uses.flatMap((use) =>
    use?.kind.case === "environmentVariable" ? use.kind.value.allowedHosts : [],
  );
  const egressHosts = [...new Set(hosts)].slice(0, MAX_EGRESS_HOSTS);
  return git || egressHosts.length > 0 ? { git, egressHosts } : undefined;
}
