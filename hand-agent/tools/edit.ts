/** `edit`: replaces text in a file. */
import { textResult } from "../result.ts";
import { readWhole, withFileErrors } from "./file-text.ts";
import { optionalBoolean, requiredPath, requiredString } from "./input.ts";
import { InputError, type Tool } from "./tool.ts";

export const editTool: Tool = {
  definition: {
    name: "edit",
    description:
      "Replace text in a file of the working directory. old_string must occur exactly once, unless replace_all is true.",
    inputSchema: {
      type: "object",
      properties: {
        file_path: { type: "string", description: "Absolute, or relative to the working directory." },
        old_string: { type: "string" },
        new_string: { type: "string" },
        replace_all: { type: "boolean" },
      },
      required: ["file_path", "old_string", "new_string"],
    },
  },
  async run({ hand, input, signal }) {
    const { given, path } = requiredPath("edit", input, "file_path", hand);
    const before = requiredString("edit", input, "old_string");
    if (before === "") throw new InputError("edit: old_string is required");
    const after = requiredString("edit", input, "new_string");
    const replaceAll = optionalBoolean("edit", input, "replace_all");
    return withFileErrors("edit", given, async () => {
      // On bytes, so that what is not UTF-8 elsewhere in the file stays as it is.
      const content = await readWhole(hand, { tool: "edit", given, path, hint: "" }, signal);
      const places = occurrences(content, Buffer.from(before));
      if (places.length === 0) throw new InputError(`edit: old_string not found in ${given}`);
      if (places.length > 1 && !replaceAll) {
        throw new InputError(`edit: old_string appears ${places.length} times in ${given} (must be unique)`);
      }
      await hand.writeFile(path, replaced(content, places, Buffer.byteLength(before), Buffer.from(after)), {
        signal,
      });
      return textResult(`edited ${given} (${places.length} replacement(s))`);
    });
  },
};

function occurrences(content: Buffer, wanted: Buffer): number[] {
  const places: number[] = [];
  for (let at = content.indexOf(wanted); at >= 0; at = content.indexOf(wanted, at + wanted.length))
    places.push(at);
  return places;
}

function replaced(content: Buffer, places: readonly number[], length: number, by: Buffer): Buffer {
  const parts: Buffer[] = [];
  let done = 0;
  for (const place of places) {
    parts.push(content.subarray(done, place), by);
    done = place + length;
  }
  return Buffer.concat([...parts, content.subarray(done)]);
}
