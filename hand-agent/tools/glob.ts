/** `glob`: the paths that match a pattern, newest first. */
import { join, relative } from "node:path";
import picomatch from "picomatch";
import { FileError, type Hand } from "../drivers/driver.ts";
import { textResult } from "../result.ts";
import { BoundedMatcher } from "./bounded-matcher.ts";
import { withFileErrors } from "./file-text.ts";
import { requiredPath, requiredString } from "./input.ts";
import { InputError, type Tool } from "./tool.ts";

const MAX_RESULTS = 200;
const BATCH_ENTRIES = 1_000;
export const MAX_WALK_ENTRIES = 50_000;
export const SKIPPED_NAMES: ReadonlySet<string> = new Set([".git", "node_modules"]);

export const globTool: Tool = {
  definition: {
    name: "glob",
    description:
      "Find files and directories by pattern (for example **/*.ts), newest first, at most 200. Skips .git and node_modules.",
    inputSchema: {
      type: "object",
      properties: {
        pattern: { type: "string", description: "Relative to path, without '..'." },
        path: { type: "string", description: "Where to start; default: the working directory." },
      },
      required: ["pattern"],
    },
  },
  async run({ hand, input, signal }) {
    const pattern = requiredString("glob", input, "pattern").replace(/^(\.\/)+/, "");
    if (pattern === "") throw new InputError("glob: pattern is required");
    if (pattern.startsWith("/")) {
      throw new InputError(
        "glob: absolute pattern not permitted; pass a relative pattern (and optionally path)",
      );
    }
    if (pattern.split("/").includes("..")) throw new InputError("glob: '..' is not permitted in the pattern");
    const { given, path } = requiredPath("glob", { path: ".", ...input }, "path", hand);
    return withFileErrors("glob", given, async () => {
      const { found, isComplete } = await search(hand, path, pattern, signal);
      found.sort((a, b) => b.mtimeMs - a.mtimeMs || (a.path < b.path ? -1 : 1));
      const lines = found.slice(0, MAX_RESULTS).map((match) => match.path);
      if (!isComplete) lines.push(`[stopped after ${MAX_WALK_ENTRIES} entries]`);
      return textResult(lines.length === 0 ? "no matches" : lines.join("\n"));
    });
  },
};

async function search(
  hand: Hand,
  path: string,
  pattern: string,
  signal: AbortSignal,
): Promise<{ found: { path: string; mtimeMs: number }[]; isComplete: boolean }> {
  const matcher = new BoundedMatcher("glob", picomatch.makeRe(pattern, { dot: true }));
  const { path: top, type } = await hand.stat(path);
  if (type !== "directory") throw new FileError("not_a_directory", path, "not a directory");
  const found: { path: string; mtimeMs: number }[] = [];
  let batch: string[] = [];
  const settle = async () => {
    const matches = matcher.test(batch);
    for (const name of batch.filter((_, i) => matches[i])) {
      // Follows a link; one that leads out of the hand's directories, or nowhere, is no match.
      const stat = await hand.stat(join(top, name)).catch(() => undefined);
      if (stat) found.push({ path: join(top, name), mtimeMs: stat.mtimeMs });
    }
    batch = [];
  };
  let entries = 0;
  for await (const entry of hand.walk(top, { skip: SKIPPED_NAMES, signal })) {
    entries += 1;
    if (entries > MAX_WALK_ENTRIES) break;
    batch.push(relative(top, entry.path));
    if (batch.length === BATCH_ENTRIES) await settle();
  }
  await settle();
  return { found, isComplete: entries <= MAX_WALK_ENTRIES };
}
