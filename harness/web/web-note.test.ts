import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { AgentSchema, type WebToolsetSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AssignmentSchema } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { withWebNote } from "./web-note.ts";

const agentWith = (toolset: MessageInitShape<typeof WebToolsetSchema>) =>
  create(AgentSchema, {
    spec: { system: "Be kind.", tools: [{ kind: { case: "webToolset", value: toolset } }] },
  });
const assigned = (webTools: { fetch: boolean; search: boolean }, proxyUrl = "http://proxy") =>
  create(AssignmentSchema, { proxyUrl, webTools });

test("a model is told which of its tools of the web are not there, and why; of those that are nothing", () => {
  const agent = agentWith({});
  expect(withWebNote(agent, assigned({ fetch: true, search: true }))).toBe(agent);
  const { system } = withWebNote(agent, assigned({ fetch: true, search: false })).spec!;
  expect(system).toBe(
    "Be kind.\n\n<web_tools>\nweb_search is not there: this installation has no search provider.\n</web_tools>",
  );
  const away = withWebNote(agent, assigned({ fetch: false, search: false }, "")).spec!.system;
  expect(away.match(/is not connected/g)).toHaveLength(2);
});

test("of what an agent does not have it is told nothing", () => {
  const without = create(AgentSchema, { spec: { system: "Be kind." } });
  const none = assigned({ fetch: false, search: false });
  expect(withWebNote(without, none)).toBe(without);
  const disabled = agentWith({ defaultPolicy: { disabled: true } });
  expect(withWebNote(disabled, none)).toBe(disabled);
});
