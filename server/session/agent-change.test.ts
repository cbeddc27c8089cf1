import { create, fromJsonString, type MessageInitShape, toJsonString } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { AgentSchema, type AgentSpec } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentChangeSchema } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { changedAgent } from "./agent-change.ts";

const skills = [{ skillId: "skill_1", versionId: "skver_1", name: "pdf", description: "Reads PDFs." }];
const agent = create(AgentSchema, { id: "agent_1", version: 3, spec: { name: "a", system: "s", skills } });
const session = {
  agent: toJsonString(AgentSchema, agent),
  workspaceId: "wrkspc_1",
  environmentId: "env_1",
  slotEnvironmentIds: { gpu: "env_2" },
};

async function change(init: MessageInitShape<typeof AgentChangeSchema>) {
  const checked: AgentSpec[] = [];
  const rules = { check: async (spec: AgentSpec) => void checked.push(spec) };
  const text = await changedAgent(rules, session, create(AgentChangeSchema, init));
  return { changed: fromJsonString(AgentSchema, text), checked: checked[0]! };
}
const hands = (value: { slot?: string; environmentId?: string }) => ({
  tools: [{ kind: { case: "handToolset" as const, value } }],
});

describe("what a session changes of its agent", () => {
  it("is its tools and servers, and nothing else of it", async () => {
    const mcpServers = [{ name: "notes", url: "https://mcp.example.com" }];
    const { changed, checked } = await change({ ...hands({ slot: "gpu" }), mcpServers });
    expect(changed).toMatchObject({ id: "agent_1", version: 3, spec: { name: "a", system: "s", skills } });
    expect(changed.spec).toMatchObject({ mcpServers, tools: [{ kind: { value: { slot: "gpu" } } }] });
    // An agent is checked as it was defined: without what a session knows of its skills.
    expect(checked.skills).toMatchObject([{ skillId: "skill_1", name: "", description: "" }]);
  });

  it("leaves its hands where they are", async () => {
    await expect(change(hands({ slot: "tpu" }))).rejects.toThrow("agent.tools[0].hand_toolset.slot");
    await expect(change(hands({ environmentId: "env_2" }))).rejects.toThrow("environment_id");
    expect((await change(hands({ slot: "gpu", environmentId: "env_2" }))).changed.spec?.tools).toHaveLength(
      1,
    );
  });
});
