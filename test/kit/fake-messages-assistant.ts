/** A fake model that does what it is told: `run: …`, `write: … = …`, `read: …`, as the demo does; else it repeats. */
import { parseDirectives } from "../../harness/demo-model/directives.ts";
import { plan, type RequestMessage } from "../../harness/demo-model/plan.ts";
import type { MessagesRequest } from "./fake-messages-request.ts";
import { type Answer, toolUse, turn } from "./fake-messages-turn.ts";

/** Answers any request; keeps nothing between two. Words that ask for nothing come back as `You said: …`. */
export function followInstructions(request: MessagesRequest): Answer {
  const said = lastWords(request);
  if (parseDirectives(said).length === 0) return turn([`You said: ${said}`]);
  const toolNames = request.tools.map((tool) => String(tool.name));
  const blocks = plan(request.messages as unknown as RequestMessage[], toolNames, "");
  return turn(blocks.map((block) => (block.type === "text" ? block.text : toolUse(block.name, block.input))));
}

function lastWords({ messages }: MessagesRequest): string {
  const hasWords = ({ role, content }: MessagesRequest["messages"][number]) =>
    role === "user" && content.some(({ type }) => type === "text");
  const texts = messages.findLast(hasWords)?.content.filter(({ type }) => type === "text") ?? [];
  return texts.map(({ text }) => String(text)).join("\n");
}
