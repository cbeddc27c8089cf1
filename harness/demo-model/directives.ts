/** The little language of the demo: what a person can ask for, one request a line. */

export type Directive =
  | { kind: "run"; command: string }
  | { kind: "write"; path: string; content: string }
  | { kind: "read"; path: string }
  /** `input` is undefined when what stands there is no JSON object. */
  | { kind: "call"; tool: string; input: Record<string, unknown> | undefined };

/** More requests than this in one message are answered with the first ones only. */
export const MAX_DIRECTIVES = 16;

export const GRAMMAR_HELP = [
  "I understand these lines:",
  "",
  "    run: COMMAND                  runs COMMAND with the bash tool and repeats what it printed",
  "    write: PATH = CONTENT         writes CONTENT to PATH, reads it back and repeats it (\\n is a new line)",
  "    read: PATH                    reads PATH and repeats it",
  "    call: TOOL {JSON}             calls any tool the agent offers, by its whole name, and repeats its answer",
  "    help                          says this",
  "",
  'Several lines are done at once. Only run: takes more than one command on a line, as in "run: A && also: B":',
  'after "&& also:" comes the bare command. Try: run: uname -a',
].join("\n");

const LINE = /^\s*(run|write|read|call)\s*:\s*(.*?)\s*$/i;
const ALSO = /\s*&&\s*also\s*:\s*/i;

function parseLine(line: string): Directive[] {
  const match = LINE.exec(line);
  const rest = match?.[2];
  if (!match || !rest) return [];
  switch (match[1]!.toLowerCase()) {
    case "run":
      return rest
        .split(ALSO)
        .filter((command) => command !== "")
        .map((command) => ({ kind: "run", command }));
    case "read":
      return [{ kind: "read", path: rest }];
    case "call":
      return [parseCall(rest)];
    default: {
      const equals = rest.indexOf("=");
      const path = rest.slice(0, Math.max(0, equals)).trim();
      if (path === "") return [];
      const content = rest
        .slice(equals + 1)
        .trim()
        .replaceAll("\\n", "\n");
      return [{ kind: "write", path, content }];
    }
  }
}

/** The name ends at the first space or brace; without an input it is an empty one. */
function parseCall(rest: string): Directive {
  const [, tool = "", json = ""] = /^([^\s{]*)\s*(.*)$/.exec(rest) ?? [];
  return { kind: "call", tool, input: json === "" ? {} : jsonObject(json) };
}

function jsonObject(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
    return isObject ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

/** Every request in `text`, in order, at most `MAX_DIRECTIVES`. Lines in other words are passed over. */
export function parseDirectives(text: string): Directive[] {
  return text.split(/\r?\n/).flatMap(parseLine).slice(0, MAX_DIRECTIVES);
}
