/**
 * Which connections of a hand its agent's relay carries to the proxy, and what its programs need for that. Only a sorting:
 * `tunnel/` decides at each again.
 */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { gitDestinations } from "../../kit/vault/destination.ts";
import { placeholderOf } from "../../kit/vault/placeholder.ts";
import { NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import type { HandTunnelsSchema } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { HandResource } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { CredentialUse } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { HandRecord } from "../store/hands.ts";
import type { HandDeps } from "./deps.ts";
import { environmentOf, resourcesOf } from "./hand-messages.ts";

type HandTunnels = MessageInitShape<typeof HandTunnelsSchema>;

const MAX_EGRESS_HOSTS = 320;

/** Undefined for a hand of which nothing goes to a proxy. Throws as SandboxAuthorities does. */
export async function tunnelsOf(
  { store, authorities }: Pick<HandDeps, "store" | "authorities">,
  hand: HandRecord,
): Promise<HandTunnels | undefined> {
  if (hand.sessionId === undefined) return undefined;
  const { sessionId } = hand;
  const resources = resourcesOf(hand);
  const carried = (await goesStraightOut(store, hand, sessionId, resources))
    ? resources.filter(({ kind }) => kind.case !== "gitRepository")
    : resources;
  const variables = authorities === undefined ? [] : await store.credentials.variables(sessionId);
  const wanted = wantedTunnels(
    carried,
    variables.map(({ credential }) => credential.use),
  );
  if (authorities === undefined || variables.length === 0) return wanted;
  return { ...wanted, authorities: await authorities.of(hand.workspaceId) };
}

/** Git of a hand that reaches all by itself, in a session without a credential that the proxy could add. */
async function goesStraightOut(
  { credentials }: Pick<HandDeps["store"], "credentials">,
  hand: HandRecord,
  sessionId: string,
  resources: readonly HandResource[],
): Promise<boolean> {
  if (environmentOf(hand).network?.mode !== NetworkMode.UNRESTRICTED) return false;
  const destinations = resources.flatMap(({ kind }) =>
    kind.case === "gitRepository" ? (gitDestinations(kind.value.url) ?? []) : [],
  );
  return destinations.length === 0 || !(await credentials.hasAny(sessionId, destinations));
}

/** Of a hand with these repositories, in a session with these variables (pure). */
export function wantedTunnels(
  resources: readonly HandResource[],
  uses: readonly (CredentialUse | undefined)[],
): Omit<HandTunnels, "$typeName"> | undefined {
  const git = resources.some(({ kind }) => kind.case === "gitRepository");
  const variables = uses.flatMap((use) => (use?.kind.case === "environmentVariable" ? [use.kind.value] : []));
  const hosts = variables.flatMap(({ allowedHosts }) => allowedHosts);
  const egressHosts = [...new Set(hosts)].slice(0, MAX_EGRESS_HOSTS);
  if (!git && egressHosts.length === 0) return undefined;
  const placeholders = variables.map(({ name }) => ({ name, value: placeholderOf(name) }));
  return { git, egressHosts, placeholders };
}
