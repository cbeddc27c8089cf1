/** A tool call in a hand with mounts: they are brought up to date before it, and what it changed is saved after it. */
import type { TextBlock, ToolResult } from "../result.ts";
import type { ExecuteToolRequest } from "../tools/execute-tool.ts";
import type { Mounts } from "./mounts.ts";

type ExecuteTool = (request: ExecuteToolRequest) => Promise<ToolResult>;

export function withMounts(
  mounts: Pick<Mounts, "of" | "beforeCall" | "afterCall">,
  executeTool: ExecuteTool,
): ExecuteTool {
  return async (request) => {
    const mounted = mounts.of(request.hand);
    if (mounted === undefined) return executeTool(request);
    const before = request.signal.aborted ? [] : await mounts.beforeCall(mounted);
    const result = await executeTool(request);
    // One that was told to end ends now; what it changed is saved with the next call.
    const after = request.signal.aborted ? [] : await mounts.afterCall(mounted);
    if (before.length + after.length === 0) return result;
    return { ...result, content: [...before.map(textBlock), ...result.content, ...after.map(textBlock)] };
  };
}

function textBlock(text: string): TextBlock {
  return { type: "text", text };
}
