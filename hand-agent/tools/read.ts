/** `read`: the text of a file, or some of its lines. */
import type { Hand } from "../drivers/driver.ts";
import { textResult } from "../result.ts";
import { readWhole, withFileErrors } from "./file-text.ts";
import { requiredPath } from "./input.ts";
import { InputError, MAX_FILE_BYTES, type Tool } from "./tool.ts";

export const readTool: Tool = {
  definition: {
    name: "read",
    description:
      "Read a UTF-8 text file in the working directory. At most 256 KiB at once; view_range reads some lines of a bigger file.",
    inputSchema: {
      type: "object",
      properties: {
        file_path: { type: "string", description: "Absolute, or relative to the working directory." },
        view_range: {
          type: "array",
          items: { type: "integer" },
          minItems: 2,
          maxItems: 2,
          description:
            "[first_line, last_line], counted from 1, both included; a last_line of 0 or below is the end.",
        },
      },
      required: ["file_path"],
    },
  },
  async run({ hand, input, signal }) {
    const { given, path } = requiredPath("read", input, "file_path", hand);
    const range = viewRange(input.view_range);
    return withFileErrors("read", given, async () => {
      const bytes = range
        ? await readLines(hand, { given, path, ...range }, signal)
        : await readWhole(hand, { tool: "read", given, path, hint: HINT }, signal);
      return textResult(new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes), {
        source: `${path}; read it in parts with view_range`,
      });
    });
  },
};

const HINT = "; read some of its lines with view_range, for example [1, 500]";

function viewRange(value: unknown): { first: number; last: number } | undefined {
  if (value === undefined || value === null) return undefined;
  const [first, last] = Array.isArray(value) && value.length === 2 ? (value as unknown[]) : [];
  if (!Number.isInteger(first) || !Number.isInteger(last)) {
    throw new InputError("read: view_range must be [start_line, end_line]");
  }
  const range = {
    first: first as number,
    last: (last as number) <= 0 ? Number.POSITIVE_INFINITY : (last as number),
  };
  if (range.first < 1) throw new InputError("read: view_range must start at line 1 or later");
  if (range.last < range.first) throw new InputError("read: view_range ends before it starts");
  return range;
}

/** Reads no further than the range, and keeps no more than the limit. */
async function readLines(
  hand: Hand,
  { given, path, first, last }: { given: string; path: string; first: number; last: number },
  signal: AbortSignal,
): Promise<Buffer> {
  const kept: Uint8Array[] = [];
  let keptBytes = 0;
  let line = 1;
  let sawLine = false;
  for await (const chunk of hand.readFile(path, { signal })) {
    for (let start = 0; start < chunk.byteLength && line <= last; ) {
      const newline = chunk.indexOf(10, start);
      const end = newline < 0 ? chunk.byteLength : newline + 1;
      if (line >= first) {
        sawLine = true;
        kept.push(chunk.subarray(start, end));
        keptBytes += end - start;
      }
      if (keptBytes > MAX_FILE_BYTES) {
        throw new InputError(
          `read: view_range of ${given} exceeds ${MAX_FILE_BYTES}-byte limit; ask for fewer lines`,
        );
      }
      if (newline >= 0) line += 1;
      start = end;
    }
    if (line > last) break;
  }
  if (!sawLine && first > 1) throw new InputError(`read: ${given} has no line ${first}`);
  const bytes = Buffer.concat(kept);
  return line > last && bytes.at(-1) === 10 ? bytes.subarray(0, -1) : bytes;
}
