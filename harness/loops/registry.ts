/** The loops that a harness can run: one line each. */
import { type ClaudeLoopOptions, createClaudeLoop } from "./claude/claude-loop.ts";
import { type ClaudeCodeLoopOptions, createClaudeCodeLoop } from "./claude-code/claude-code-loop.ts";
import { createExternalLoop, type ExternalLoopOptions } from "./external/external-loop.ts";
import type { Loop } from "./loop.ts";
import { scriptedLoop } from "./scripted/scripted-loop.ts";

/** What agents that name no loop get. */
export const DEFAULT_LOOP = "claude";

export interface LoopsOptions {
  readonly claude: ClaudeLoopOptions;
  /** Asked for it without the package that it needs, a session is told so. */
  readonly claudeCode?: ClaudeCodeLoopOptions;
  /** Offered only where programs are configured for it. */
  readonly external?: ExternalLoopOptions;
}

export function createLoops({ claude, claudeCode, external }: LoopsOptions): ReadonlyMap<string, Loop> {
  const loops: Loop[] = [createClaudeLoop(claude), scriptedLoop];
  if (claudeCode !== undefined) loops.push(createClaudeCodeLoop(claudeCode));
  if (external !== undefined && external.programs.size > 0) loops.push(createExternalLoop(external));
  return new Map(loops.map((loop) => [loop.name, loop]));
}
