/** The tools that a brain can run itself: one line each. `server/agent/brain-tool-names.ts` has the same names. */
import type { BrainTool } from "./brain-tool.ts";
import { handList } from "./hand-list.ts";
import { sessionHistory } from "./session-history.ts";

const TOOLS: readonly BrainTool[] = [handList, sessionHistory];

export const BRAIN_TOOLS: ReadonlyMap<string, BrainTool> = new Map(TOOLS.map((tool) => [tool.name, tool]));
