/** The little language of the demo: what a person can ask for, one request a line. */

export type Directive =
  | { kind: "run"; command: string }
  | { kind: "write"; path: string; content: string }
  | { kind: "read"; path: string };

/** More requests than this in one message are answered with the first ones only. */
export const MAX_DIRECTIVES = 16;

export const GRAMMAR_HELP = [
  "I understand these lines:",
  "",
  "    run: COMMAND                  runs COMMAND with the bash tool and repeats what it printed",
  "    write: PATH = CONTENT         writes CONTENT to PATH, reads it back and repeats it (\\n is a new line)",
  "    read: PATH                    reads PATH and repeats it",
  "    help                          says this",
  "",
  'Several lines are done at once. Only run: takes more than one command on a line, as in "run: A && also: B":',
  'after "&& also:" comes the bare command. Try: run: uname -a',
].join("\n");

const LINE = /^\s*(run|write|read)\s*:\s*(.*?)\s*$/i;
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

/** Every request in `text`, in order, at most `MAX_DIRECTIVES`. Lines in other words are passed over. */
export function parseDirectives(text: string): Directive[] {
  return text.split(/\r?\n/).flatMap(parseLine).slice(0, MAX_DIRECTIVES);
}
