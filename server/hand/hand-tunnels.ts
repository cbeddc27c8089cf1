/** Which connections of a hand its agent's relay carries to the proxy. Only a sorting: `tunnel/` decides at each again. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { HandTunnelsSchema } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { HandRecord } from "../store/hands.ts";
import type { HandDeps } from "./deps.ts";
import { resourcesOf } from "./hand-messages.ts";

const MAX_EGRESS_HOSTS = 320;

/** Undefined for a hand that has neither repositories nor, by its session, variables. */
export async function tunnelsOf(
  { store }: HandDeps,
  hand: HandRecord,
): Promise<MessageInitShape<typeof HandTunnelsSchema> | undefined> {
  if (hand.sessionId === undefined) return undefined;
  const git = resourcesOf(hand).some(({ kind }) => kind.case === "gitRepository");
  const variables = await store.credentials.variables(hand.sessionId);
  const hosts = variables.flatMap(({ credential }) => {
    const use = credential.use?.kind;
    return use?.case === "environmentVariable" ? use.value.allowedHosts : [];
  });
  const egressHosts = [...new Set(hosts)].slice(0, MAX_EGRESS_HOSTS);
  return git || egressHosts.length > 0 ? { git, egressHosts } : undefined;
}
