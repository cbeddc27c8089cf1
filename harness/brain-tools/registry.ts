/** The tools that a brain can run itself: one line each. `server/agent/brain-tool-names.ts` has the same names. */
import type { BrainTool } from "./brain-tool.ts";
import { handExecute } from "./hand-execute.ts";
import { handHandOver } from "./hand-hand-over.ts";
import { handList } from "./hand-list.ts";
import { handProvision } from "./hand-provision.ts";
import { handRelease } from "./hand-release.ts";
import { memory } from "./memory.ts";
import { sessionHistory } from "./session-history.ts";
import { threadCreate } from "./thread-create.ts";
import { threadList } from "./thread-list.ts";
import { threadSend } from "./thread-send.ts";
import { threadStop } from "./thread-stop.ts";
import { threadWait } from "./thread-wait.ts";

const TOOLS: readonly BrainTool[] = [
  handExecute,
  handHandOver,
  handList,
  handProvision,
  handRelease,
  memory,
  sessionHistory,
  threadCreate,
  threadList,
  threadSend,
  threadStop,
  threadWait,
];

export const BRAIN_TOOLS: ReadonlyMap<string, BrainTool> = new Map(TOOLS.map((tool) => [tool.name, tool]));
