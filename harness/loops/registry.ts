/** The loops that a harness can run: one line each. */
import { type ClaudeLoopOptions, createClaudeLoop } from "./claude/claude-loop.ts";
import type { Loop } from "./loop.ts";
import { scriptedLoop } from "./scripted/scripted-loop.ts";

/** What agents that name no loop get. */
export const DEFAULT_LOOP = "claude";

export interface LoopsOptions {
  readonly claude: ClaudeLoopOptions;
}

export function createLoops({ claude }: LoopsOptions): ReadonlyMap<string, Loop> {
  const loops: Loop[] = [createClaudeLoop(claude), scriptedLoop];
  return new Map(loops.map((loop) => [loop.name, loop]));
}
