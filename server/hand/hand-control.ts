/** What other areas ask about hands. */
import { TendonError } from "../../kit/errors.ts";
import type { HandControl } from "../ports/hand-control.ts";
import type { AgentConnections } from "./agent-connections.ts";
import { BUILTIN_TOOLS } from "./builtin-tools.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import type { HandEndings } from "./hand-endings.ts";
import type { Provisioner } from "./provisioner.ts";
import { toolsDigestFor, wishOf } from "./rules.ts";
import type { ToolLists } from "./tool-lists.ts";

const MAX_OPEN_EXECUTIONS = 10_000;

export interface HandControlParts {
  readonly connections: AgentConnections;
  readonly conclusions: Conclusions;
  readonly endings: HandEndings;
  readonly provisioner: Provisioner;
  readonly toolLists: ToolLists;
}

export function createHandControl(deps: HandDeps, parts: HandControlParts): HandControl {
  return {
    async releaseSession(sessionId) {
      const hands = await deps.store.hands.ofSession(sessionId);
      await Promise.all(hands.map((hand) => parts.endings.release(hand, "its session ended", undefined)));
    },
    async slotTools({ sessionId, environmentId, slotEnvironmentIds }) {
      const slots = Object.entries({ ...slotEnvironmentIds, "": environmentId });
      return Promise.all(
        slots.map(async ([slot, slotEnvironmentId]) => {
          const pinned = await deps.store.hands.pinTools(sessionId, slot, () =>
            chooseTools(deps, parts, slotEnvironmentId),
          );
          return { slot, digest: pinned.digest, tools: pinned.tools.map((tool) => ({ ...tool })) };
        }),
      );
    },
    disconnect: (handAgentId, detail) => loseAgent(deps, parts, handAgentId, detail),
  };
}

async function chooseTools(deps: HandDeps, parts: HandControlParts, environmentId: string) {
  const environment = await deps.store.environments.find(environmentId);
  if (environment?.spec === undefined) return BUILTIN_TOOLS;
  const wish = wishOf(environment.spec, deps.defaultDriver, environmentId);
  const agents = await deps.store.handAgents.candidates(environment.workspaceId, wish.pool);
  const digest = toolsDigestFor(wish, agents, (agent) => parts.provisioner.isReachable(agent));
  const tools = await parts.toolLists.tools(digest);
  return tools.length === 0 ? BUILTIN_TOOLS : tools;
}

/** A revoked agent: its connection ends, its hands are lost, what it ran is unknown. */
export async function loseAgent(
  deps: HandDeps,
  parts: Pick<HandControlParts, "connections" | "conclusions" | "endings">,
  handAgentId: string,
  detail: string,
): Promise<void> {
  parts.connections.cut(handAgentId, new TendonError("HAND_AGENT_REVOKED", detail));
  for (const hand of await deps.store.hands.ofAgent(handAgentId)) {
    if (hand.state === "lost" || hand.state === "released") continue;
    await parts.endings.lose(hand, detail, { part: "hand_agent", reason: "HAND_AGENT_REVOKED" });
  }
  const open = await deps.store.executions.openOfAgent(handAgentId, MAX_OPEN_EXECUTIONS);
  await parts.conclusions.giveUp(open, detail);
}
