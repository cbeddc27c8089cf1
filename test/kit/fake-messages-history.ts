/** What the API refuses in how messages follow each other. Equal neighbours are merged first, as it does. */
import { type Json, type Message, type MessagesRequest, refuse } from "./fake-messages-request.ts";

/** What the fake remembers of answers it has given, to know them again. */
export class GivenAnswers {
  private readonly thinkingByCall = new Map<string, string[]>();
  private readonly paused = new Set<string>();

  /** `blocks` as a request will hold them when it comes back. */
  remember(blocks: readonly Json[], isPaused: boolean): void {
    const thoughts = blocks.filter(isThinking).map(blockText);
    for (const block of blocks)
      if (block.type === "tool_use") this.thinkingByCall.set(String(block.id), thoughts);
    if (isPaused) this.paused.add(blocks.map(blockText).join("\n"));
  }

  /** The thinking blocks of the answer that made this call; undefined when the fake did not give it. */
  thinkingOf(callId: string): string[] | undefined {
    return this.thinkingByCall.get(callId);
  }

  /** Whether the message ends with an answer that stopped with pause_turn: only that may be continued. */
  isPaused(content: readonly Json[]): boolean {
    const texts = content.map(blockText);
    return texts.some((_, from) => this.paused.has(texts.slice(from).join("\n")));
  }
}

interface Merged extends Message {
  /** Of its first part, for messages of refusals. */
  index: number;
}

/** Refuses a history that the API refuses; `given` are the answers this fake gave before. */
export function checkHistory(request: MessagesRequest, given: GivenAnswers): void {
  const { messages, tools } = request;
  if (messages[0]!.role !== "user") refuse('messages: first message must use the "user" role');
  messages.forEach(({ content, role }, i) => {
    if (content.length === 0 && !(role === "assistant" && i === messages.length - 1))
      refuse(
        `messages.${i}: all messages must have non-empty content except for the optional final assistant message`,
      );
    if (role === "system" && messages[i - 1]?.role !== "user")
      refuse(`messages.${i}: a "system" message must directly follow a "user" message`);
  });
  const merged = merge(messages);
  const hasToolBlocks = merged.some(({ content }) =>
    content.some(({ type }) => type === "tool_use" || type === "tool_result"),
  );
  if (hasToolBlocks && tools.length === 0)
    refuse("Requests which include `tool_use` or `tool_result` blocks must define tools");
  checkToolPairs(merged);
  if (request.thinking?.type !== "disabled") checkThinkingCameBack(merged, given);
  const last = messages.at(-1)!;
  if (last.role === "assistant" && !given.isPaused(merged.at(-1)!.content))
    refuse(
      "This model does not support assistant message prefill. The conversation must end with a user message.",
    );
}

/** Merged, user and assistant alternate. System messages are no turn of the talk: they are left out before. */
function merge(messages: readonly Message[]): Merged[] {
  const merged: Merged[] = [];
  messages.forEach(({ role, content }, index) => {
    if (role === "system") return;
    const last = merged.at(-1);
    if (last?.role === role) last.content.push(...content);
    else merged.push({ role, content: [...content], index });
  });
  return merged;
}

function checkToolPairs(merged: readonly Merged[]): void {
  const seen = new Set<string>();
  merged.forEach(({ role, content, index }, i) => {
    if (role === "assistant") checkCalls(content, merged[i + 1], index, seen);
    else checkResults(content, merged[i - 1], index);
  });
}

function checkCalls(
  content: readonly Json[],
  next: Merged | undefined,
  index: number,
  seen: Set<string>,
): void {
  const ids = content.filter(({ type }) => type === "tool_use").map(({ id }) => String(id));
  for (const id of ids) {
    if (seen.has(id)) refuse(`messages.${index}: \`tool_use\` ids must be unique. Found ${id} twice.`);
    seen.add(id);
  }
  const head = resultsAtHead(next?.content ?? []);
  const missing = ids.filter((id) => !head.includes(id));
  if (missing.length > 0)
    refuse(
      `messages.${index}: \`tool_use\` ids were found without \`tool_result\` blocks immediately after: ${missing.join(", ")}. ` +
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
    );
}

function resultsAtHead(content: readonly Json[]): string[] {
  const end = content.findIndex(({ type }) => type !== "tool_result");
  return content.slice(0, end === -1 ? content.length : end).map((block) => String(block.tool_use_id));
}

function checkResults(content: readonly Json[], previous: Merged | undefined, index: number): void {
  const calls = (previous?.content ?? []).filter(({ type }) => type === "tool_use").map(({ id }) => id);
  const answered = new Set<unknown>();
  content.forEach((block, k) => {
    if (block.type !== "tool_result") return;
    const id = block.tool_use_id;
    if (!calls.includes(id))
      refuse(
        `messages.${index}.content.${k}: unexpected \`tool_use_id\` found in \`tool_result\` blocks: ${id}. ` +
          "Each `tool_result` block must have a corresponding `tool_use` block in the previous message.",
      );
    if (answered.has(id))
      refuse(
        `messages.${index}.content.${k}: each tool_use must have a single result. Found multiple \`tool_result\` blocks with id: ${id}`,
      );
    answered.add(id);
  });
}

/** While a tool loop goes on, each of its answers comes back with exactly the thinking it was given with. */
function checkThinkingCameBack(merged: readonly Merged[], given: GivenAnswers): void {
  const loopStart = merged.findLastIndex(
    ({ role, content }) => role === "user" && !content.some(({ type }) => type === "tool_result"),
  );
  for (const { role, content, index } of merged.slice(loopStart + 1)) {
    if (role !== "assistant") continue;
    const answers = new Set(
      content.map(({ type, id }) => (type === "tool_use" ? given.thinkingOf(String(id)) : undefined)),
    );
    const present = content.filter(isThinking).map(blockText);
    for (const thoughts of answers) if (thoughts) checkThoughts(thoughts, present, index, content[0]?.type);
  }
}

function checkThoughts(
  thoughts: readonly string[],
  present: readonly string[],
  index: number,
  found: unknown,
): void {
  if (thoughts.length > 0 && present.length === 0)
    refuse(
      `messages.${index}.content.0.type: Expected \`thinking\` or \`redacted_thinking\`, but found \`${found}\`. ` +
        "When `thinking` is enabled, a final `assistant` message must start with a thinking block.",
    );
  // Neighbours were merged, so other answers' thoughts may stand around these.
  if (!present.join("\n").includes(thoughts.join("\n")))
    refuse(
      `messages.${index}: \`thinking\` or \`redacted_thinking\` blocks in the latest assistant message cannot be modified. ` +
        "These blocks must remain as they were in the original response.",
    );
}

function isThinking({ type }: Json): boolean {
  return type === "thinking" || type === "redacted_thinking";
}

/** One text for what matters of a block, so that marks and nulls make no difference. */
function blockText(block: Json): string {
  const { type, text, thinking, signature, data, id, name, input } = block;
  return JSON.stringify([type, text, thinking, signature, data, id, name, input]);
}
