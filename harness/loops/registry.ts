/** The loops that a harness can run: one line each. */
import { type ClaudeLoopOptions, createClaudeLoop } from "./claude/claude-loop.ts";
import { createExternalLoop, type ExternalLoopOptions } from "./external/external-loop.ts";
import type { Loop } from "./loop.ts";
import { scriptedLoop } from "./scripted/scripted-loop.ts";

/** What agents that name no loop get. */
export const DEFAULT_LOOP = "claude";

export interface LoopsOptions {
  readonly claude: ClaudeLoopOptions;
  /** Offered only where programs are configured for it. */
  readonly external?: ExternalLoopOptions;
}

export function createLoops({ claude, external }: LoopsOptions): ReadonlyMap<string, Loop> {
  const loops: Loop[] = [createClaudeLoop(claude), scriptedLoop];
  if (external !== undefined && external.programs.size > 0) loops.push(createExternalLoop(external));
  return new Map(loops.map((loop) => [loop.name, loop]));
}
