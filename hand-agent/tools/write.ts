/** `write`: makes or replaces a file. */
import { textResult } from "../result.ts";
import { withFileErrors } from "./file-text.ts";
import { requiredPath, requiredString } from "./input.ts";
import type { Tool } from "./tool.ts";

export const writeTool: Tool = {
  definition: {
    name: "write",
    description:
      "Write a file in the working directory, replacing what it held. Missing directories are made.",
    inputSchema: {
      type: "object",
      properties: {
        file_path: { type: "string", description: "Absolute, or relative to the working directory." },
        content: { type: "string" },
      },
      required: ["file_path", "content"],
    },
  },
  async run({ hand, input, signal }) {
    const { given, path } = requiredPath("write", input, "file_path", hand);
    const content = Buffer.from(requiredString("write", input, "content"));
    return withFileErrors("write", given, async () => {
      const { bytes } = await hand.writeFile(path, content, { signal });
      return textResult(`wrote ${bytes} bytes to ${given}`);
    });
  },
};
