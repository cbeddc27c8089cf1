/** What a model is told about tools of the web that its agent has and its installation does not: why it misses them. Pure. */
import { isToolEnabled } from "../../kit/tool-policy.ts";
import { WEB_FETCH, WEB_SEARCH } from "../../kit/web/tool-names.ts";
import type { Agent } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { Assignment } from "../../proto/gen/tendon/v1/harness_service_pb.js";

const TURNED_OFF = "this installation has turned it off";
const NO_PROVIDER = "this installation has no search provider";
const NO_PROXY = "the part of this installation that runs it is not connected";

/** The agent as its loop is to see it. */
export function withWebNote(
  agent: Agent,
  { proxyUrl, webTools }: Pick<Assignment, "proxyUrl" | "webTools">,
): Agent {
  const { spec } = agent;
  const toolset = spec?.tools.flatMap(({ kind }) => (kind.case === "webToolset" ? [kind.value] : []))[0];
  if (spec === undefined || toolset === undefined) return agent;
  const missing = [
    { name: WEB_FETCH, isThere: webTools?.fetch, why: TURNED_OFF },
    { name: WEB_SEARCH, isThere: webTools?.search, why: NO_PROVIDER },
  ].filter(({ name, isThere }) => isThere !== true && isToolEnabled(toolset, name));
  if (missing.length === 0) return agent;
  const lines = missing.map(({ name, why }) => `${name} is not there: ${proxyUrl === "" ? NO_PROXY : why}.`);
  const note = ["<web_tools>", ...lines, "</web_tools>"].join("\n");
  const system = spec.system.trim() === "" ? note : `${spec.system}\n\n${note}`;
  return { ...agent, spec: { ...spec, system } };
}
