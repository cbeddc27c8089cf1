/** What a call of the model stands for: which tool, on which hand, with which input; or why it cannot run (pure). */
import { HAND_EXECUTE, reachedCall } from "./brain-tools/hand-execute.ts";
import { objectText } from "./event-payload.ts";
import type { ProposedCall } from "./loops/loop.ts";
import type { CatalogueTool, ToolCatalogue } from "./tool-catalogue.ts";

export interface CallTarget {
  /** Undefined when there is no such tool. */
  readonly tool: CatalogueTool | undefined;
  /** JSON text of one object. */
  readonly input: string;
  /** The tool through which the model reached it; undefined for its own tools. */
  readonly via: string | undefined;
  /** Why the call cannot run, for the model; undefined when it can. */
  readonly problem: string | undefined;
}

export function callTarget(call: ProposedCall, catalogue: ToolCatalogue): CallTarget {
  const tool = catalogue.find(call.modelName);
  const input = objectText(call.inputText) ?? "{}";
  const problem = tool === undefined ? unknownTool(call.modelName, catalogue) : call.problem;
  const direct = { tool, input, via: undefined, problem };
  if (problem !== undefined || tool?.kind !== "brain" || tool.name !== HAND_EXECUTE) return direct;
  const reached = reachedCall(input);
  if ("problem" in reached) return { ...direct, problem: reached.problem };
  const { slot, name, inputText } = reached;
  const target = catalogue.reach(slot, name);
  if (target === undefined) return { ...direct, problem: `"${name}" is not allowed, so it did not run.` };
  return { tool: target, input: inputText, via: HAND_EXECUTE, problem: undefined };
}

function unknownTool(modelName: string, { offered }: ToolCatalogue): string {
  const names = offered.map((tool) => tool.modelName).join(", ");
  return `There is no tool named "${modelName}". ${names === "" ? "No tools are offered." : `Tools: ${names}.`}`;
}
