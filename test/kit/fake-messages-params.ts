/** Parts of requests for the tests of the fake Messages API. */
import type Anthropic from "@anthropic-ai/sdk";

export const BASH: Anthropic.Tool = { name: "bash", input_schema: { type: "object" } };
export const base = { model: "claude-test", max_tokens: 2000, tools: [BASH] };
export const asks = (content: string): Anthropic.MessageParam => ({ role: "user", content });
export const HELLO = { ...base, messages: [asks("hello")] };

export type Params = Anthropic.MessageCreateParamsNonStreaming;
export const result = (id: string, content = "ok"): Anthropic.ToolResultBlockParam => ({
  type: "tool_result",
  tool_use_id: id,
  content,
});
export const call = (id: string): Anthropic.ToolUseBlockParam => ({
  type: "tool_use",
  id,
  name: "bash",
  input: {},
});
export const says = (...content: Anthropic.ContentBlockParam[]): Anthropic.MessageParam => ({
  role: "assistant",
  content,
});
export const tells = (...content: Anthropic.ContentBlockParam[]): Anthropic.MessageParam => ({
  role: "user",
  content,
});

export const TEXT: Anthropic.TextBlockParam = { type: "text", text: "x" };
