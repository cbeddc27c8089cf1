/** Finds the connection of a hand's agent, and waits a while for one that is away. */

import { abortable } from "../../kit/abortable.ts";
import { TendonError } from "../../kit/errors.ts";
import type { HandRecord } from "../store/hands.ts";
import type { AgentLink, AgentLinks } from "./agent-link.ts";
import type { HandDeps } from "./deps.ts";
import type { Provisioner } from "./provisioner.ts";

export interface HandLinkParts {
  readonly links: AgentLinks;
  readonly provisioner: Pick<Provisioner, "timeoutMs" | "changed">;
}

/** Undefined when there is none within the provision timeout. UNAVAILABLE when only another replica could have it. */
export async function linkOfHand(
  deps: Pick<HandDeps, "clock" | "store" | "timing" | "replicaId" | "peers">,
  { links, provisioner }: HandLinkParts,
  hand: HandRecord,
  signal: AbortSignal,
): Promise<AgentLink | undefined> {
  const { clock, store, timing, replicaId } = deps;
  const deadlineMs = clock.monotonicMs() + provisioner.timeoutMs(hand);
  for (;;) {
    const known = links.find(hand.handAgentId!);
    if (known !== undefined && !known.draining) return known;
    const agent = await store.handAgents.find(hand.handAgentId!);
    const link = known ?? (agent && links.reach(agent));
    if (link !== undefined && !link.draining) return link;
    if (
      link === undefined &&
      agent?.online &&
      agent.replicaId !== replicaId &&
      deps.peers.standing(agent.replicaId ?? "") === "silent"
    ) {
      throw new TendonError(
        "UNAVAILABLE",
        `hand agent "${agent.handAgentId}" is connected to another replica of the server, which has no TENDON_PEER_URL; ask that one`,
        { replica_id: agent.replicaId ?? "" },
      );
    }
    const leftMs = deadlineMs - clock.monotonicMs();
    if (leftMs <= 0 || agent === undefined || agent.revokedAt !== undefined) return undefined;
    await abortable(provisioner.changed(Math.min(leftMs, timing.lookAgainMs)), signal);
  }
}
