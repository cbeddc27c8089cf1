import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ListAgentsResponseSchema } from "../proto/gen/tendon/v1/agent_service_pb.js";
import { type Agents, agentIdOf } from "./named.ts";

/** Pages of agents, as [id, name]. */
function agentsOf(...pages: [id: string, name: string][][]): Agents {
  return {
    listAgents: async ({ pageToken }: { pageToken?: string }) => {
      const index = Number(pageToken || 0);
      return create(ListAgentsResponseSchema, {
        agents: pages[index]!.map(([id, name]) => ({ id, spec: { name } })),
        nextPageToken: index + 1 < pages.length ? String(index + 1) : "",
      });
    },
  } as unknown as Agents;
}

test("an id is taken as it is, a name that one agent has stands for it", async () => {
  const agents = agentsOf([["agent_1", "one"]], [["agent_2", "two"]]);
  expect(await agentIdOf(agents, "agent_9")).toBe("agent_9");
  expect(await agentIdOf(agents, "two")).toBe("agent_2");
});

test("a name of several agents is refused with their ids, a name of none too", async () => {
  const agents = agentsOf([["agent_1", "same"]], [["agent_2", "same"]]);
  await expect(agentIdOf(agents, "same")).rejects.toThrow(
    '2 agents are named "same"; name one by its id: agent_1, agent_2',
  );
  await expect(agentIdOf(agents, "other")).rejects.toThrow('there is no agent named "other"');
});
