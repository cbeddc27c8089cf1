/**
 * What the demo answers: a pure function of the conversation. It looks at the last thing the user said and at the
 * tool calls made since, so it may be asked again, by anyone, from any point.
 */
import { type Directive, GRAMMAR_HELP, parseDirectives } from "./directives.ts";
import { piecesOf } from "./messages-wire.ts";

export const DEMO_NOTICE =
  "This is Tendon's scripted demo, not a model. Set ANTHROPIC_API_KEY for a real one.";

/** Longer tool outputs are repeated up to here, in characters. */
export const MAX_REPEATED_CHARS = 10_000;

/** A content block as requests carry it; unknown fields and types are passed over. */
export interface RequestBlock {
  type: string;
  text?: string;
  id?: string;
  name?: string;
  tool_use_id?: string;
  is_error?: boolean;
  content?: string | RequestBlock[];
}

export interface RequestMessage {
  role: string;
  content: string | RequestBlock[];
}

export type PlannedBlock =
  | { type: "text"; text: string }
  | { type: "tool_use"; name: string; input: Record<string, unknown> };

interface Call {
  directive: Directive;
  name: string;
  input: Record<string, unknown>;
}

interface Outcome {
  text: string;
  isError: boolean;
}

interface Turn {
  /** The last thing the user said. */
  text: string;
  /** Results of the calls made since then, in the order of the calls. */
  outcomes: Outcome[];
  /** Nothing has been answered in this conversation yet. */
  isFirstAnswer: boolean;
}

/**
 * The next response to `messages`, using whichever of the tools that were asked for are among `toolNames`.
 * `notice` opens the first answer of a conversation and every explanation; an empty one is left out.
 */
export function plan(
  messages: readonly RequestMessage[],
  toolNames: readonly string[],
  notice: string = DEMO_NOTICE,
): PlannedBlock[] {
  const turn = readTurn(messages);
  const directives = parseDirectives(turn.text);
  const opening = turn.isFirstAnswer && notice !== "" ? [notice] : [];
  if (directives.length === 0) return [text(notice === "" ? [GRAMMAR_HELP] : [notice, GRAMMAR_HELP])];

  const offered = (call: Call) => toolNames.includes(call.name) && !isBroken(call);
  const first = directives.map(firstCall).filter(offered);
  const done = turn.outcomes.slice(0, first.length);
  const second = first.filter((_, i) => done[i]?.isError === false).flatMap(readBack);

  if (first.length > 0 && turn.outcomes.length === 0) return announce(opening, first);
  const reads = second.filter(offered);
  if (reads.length > 0 && turn.outcomes.length === first.length) return announce(opening, reads);

  const missing = [...directives.map(firstCall), ...second].filter((call) => !offered(call));
  const readOutcomes = turn.outcomes.slice(first.length);
  return [
    text([
      ...opening,
      ...first.map((call, i) => report(call, done[i])),
      ...reads.map((call, i) => report(call, readOutcomes[i])),
      ...missing.map(reportMissing),
    ]),
  ];
}

/** The last thing that the user said. */
export function wordsOf(messages: readonly RequestMessage[]): string {
  return readTurn(messages).text;
}

function text(paragraphs: readonly string[]): PlannedBlock {
  return { type: "text", text: paragraphs.join("\n\n") };
}

function announce(opening: readonly string[], calls: readonly Call[]): PlannedBlock[] {
  const uses = calls.map(({ name, input }): PlannedBlock => ({ type: "tool_use", name, input }));
  return opening.length > 0 ? [text(opening), ...uses] : uses;
}

function firstCall(directive: Directive): Call {
  switch (directive.kind) {
    case "run":
      return { directive, name: "bash", input: { command: directive.command } };
    case "read":
      return { directive, name: "read", input: { file_path: directive.path } };
    case "write":
      return {
        directive,
        name: "write",
        input: { file_path: directive.path, content: directive.content },
      };
    case "call":
      return { directive, name: directive.tool, input: directive.input ?? {} };
  }
}

function isBroken({ directive }: Call): boolean {
  return directive.kind === "call" && directive.input === undefined;
}

function readBack({ directive }: Call): Call[] {
  return directive.kind === "write" ? [firstCall({ kind: "read", path: directive.path })] : [];
}

function subject({ name, directive }: Call): string {
  if (directive.kind === "run") return `\`${directive.command}\``;
  return directive.kind === "call" ? `\`${name}\`` : `${name} of ${directive.path}`;
}

function report(call: Call, outcome: Outcome | undefined): string {
  if (!outcome) return `${subject(call)}: there is no result.`;
  const said = shorten(outcome.text);
  if (outcome.isError) return said === "" ? `${subject(call)} failed.` : `${subject(call)} failed:\n${said}`;
  if (call.directive.kind === "call")
    return said === "" ? `${subject(call)} answered nothing.` : `${subject(call)} answered:\n${said}`;
  if (call.name === "read")
    return said === "" ? `${call.input.file_path} is empty.` : `${call.input.file_path} contains:\n${said}`;
  if (call.name === "write") return `Wrote ${call.input.file_path}.`;
  return said === "" ? `${subject(call)} printed nothing.` : `${subject(call)} printed:\n${said}`;
}

function reportMissing(call: Call): string {
  if (isBroken(call)) return `What follows \`call: ${call.name}\` is no JSON object, so I left it out.`;
  return `This agent offers no \`${call.name}\` tool, so I left out: ${subject(call)}.`;
}

function shorten(output: string): string {
  const left = output.length - MAX_REPEATED_CHARS;
  return left <= 0 ? output : `${piecesOf(output, MAX_REPEATED_CHARS)[0]}\n(${left} more characters)`;
}

/** Splits the conversation at the last run of the user's own words. */
function readTurn(messages: readonly RequestMessage[]): Turn {
  const blocks = messages.flatMap(({ role, content }) => blocksOf(content).map((block) => ({ role, block })));
  const isWords = (i: number) => blocks[i]?.role === "user" && blocks[i]?.block.type === "text";
  let end = blocks.length;
  while (end > 0 && !isWords(end - 1)) end -= 1;
  let start = end;
  while (start > 0 && isWords(start - 1)) start -= 1;

  const results = new Map<string, Outcome>();
  const callIds: string[] = [];
  for (const { role, block } of blocks.slice(end)) {
    if (role === "assistant" && block.type === "tool_use") callIds.push(block.id ?? "");
    if (block.type === "tool_result")
      results.set(block.tool_use_id ?? "", {
        text: textOf(block.content),
        isError: block.is_error === true,
      });
  }
  return {
    text: blocks
      .slice(start, end)
      .map(({ block }) => block.text ?? "")
      .join("\n"),
    outcomes: callIds.map((id) => results.get(id) ?? { text: "there is no result", isError: true }),
    isFirstAnswer: !blocks.some(({ role }) => role === "assistant"),
  };
}

function blocksOf(content: string | RequestBlock[]): RequestBlock[] {
  return typeof content === "string" ? [{ type: "text", text: content }] : content;
}

function textOf(content: string | RequestBlock[] | undefined): string {
  return blocksOf(content ?? [])
    .map((block) => (block.type === "text" ? (block.text ?? "") : `[${block.type}]`))
    .join("\n");
}
