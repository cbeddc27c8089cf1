/**
 * The tools of the process driver, for sessions whose first model request comes before any hand agent has told what it
 * has. Data, and the same as the hand agent's own: a test compares them.
 */
import type { ToolRecord } from "../store/hand-agents.ts";

const TOOLS: readonly { name: string; description: string; schema: object }[] = [
  {
    name: "bash",
    description:
      "Run a command in a persistent bash shell: variables and the working directory stay from call to call. Standard input is empty. Start long-running programs in the background with &, their output sent to a file.",
    schema: {
      type: "object",
      properties: {
        command: {
          type: "string",
          description: "The command to run.",
        },
        restart: {
          type: "boolean",
          description: "Start with a new shell.",
        },
        timeout_ms: {
          type: "integer",
          minimum: 0,
          maximum: 86400000,
          description: "After this many milliseconds the command is killed. Default, and meant by 0: 120000.",
        },
      },
    },
  },
  {
    name: "read",
    description:
      "Read a UTF-8 text file in the working directory. At most 256 KiB at once; view_range reads some lines of a bigger file.",
    schema: {
      type: "object",
      properties: {
        file_path: {
          type: "string",
          description: "Absolute, or relative to the working directory.",
        },
        view_range: {
          type: "array",
          items: {
            type: "integer",
          },
          minItems: 2,
          maxItems: 2,
          description:
            "[first_line, last_line], counted from 1, both included; a last_line of 0 or below is the end.",
        },
      },
      required: ["file_path"],
    },
  },
  {
    name: "write",
    description:
      "Write a file in the working directory, replacing what it held. Missing directories are made.",
    schema: {
      type: "object",
      properties: {
        file_path: {
          type: "string",
          description: "Absolute, or relative to the working directory.",
        },
        content: {
          type: "string",
        },
      },
      required: ["file_path", "content"],
    },
  },
  {
    name: "edit",
    description:
      "Replace text in a file of the working directory. old_string must occur exactly once, unless replace_all is true.",
    schema: {
      type: "object",
      properties: {
        file_path: {
          type: "string",
          description: "Absolute, or relative to the working directory.",
        },
        old_string: {
          type: "string",
        },
        new_string: {
          type: "string",
        },
        replace_all: {
          type: "boolean",
        },
      },
      required: ["file_path", "old_string", "new_string"],
    },
  },
  {
    name: "glob",
    description:
      "Find files and directories by pattern (for example **/*.ts), newest first, at most 200. Skips .git and node_modules.",
    schema: {
      type: "object",
      properties: {
        pattern: {
          type: "string",
          description: "Relative to path, without '..'.",
        },
        path: {
          type: "string",
          description: "Where to start; default: the working directory.",
        },
      },
      required: ["pattern"],
    },
  },
  {
    name: "grep",
    description:
      "Search file contents for a regular expression. Gives path:line:text. Skips .git and node_modules.",
    schema: {
      type: "object",
      properties: {
        pattern: {
          type: "string",
          description: "A regular expression.",
        },
        path: {
          type: "string",
          description: "A file or directory; default: the working directory.",
        },
      },
      required: ["pattern"],
    },
  },
];

export const BUILTIN_TOOLS: readonly ToolRecord[] = TOOLS.map(({ name, description, schema }) => ({
  name,
  description,
  inputSchema: JSON.stringify(schema),
}));
