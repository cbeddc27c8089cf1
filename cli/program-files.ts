/** The other programs' files: beside this one when it is bundled, in dist/ when it runs from its sources. */
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { StartupError } from "../kit/program.ts";

export const PROGRAM_NAMES = ["server", "harness", "mcp-proxy", "hand-agent"] as const;
export type ProgramName = (typeof PROGRAM_NAMES)[number];

/** Throws a StartupError when the program has not been built. */
export function programFile(name: ProgramName): string {
  const candidates = [`./${name}.mjs`, `../dist/${name}.mjs`].map((path) =>
    fileURLToPath(new URL(path, import.meta.url)),
  );
  const found = candidates.find((path) => existsSync(path));
  if (found === undefined) throw new StartupError(`${candidates[0]} is missing; run: npm run build`);
  return found;
}
