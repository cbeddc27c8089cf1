// Bundles each program into one file under dist/; with words of the form NAME=SOURCE those alone (test/kit/test-program.ts).
// Types are checked by `npm run types`, not here: a build takes about a second.
import { existsSync, mkdirSync, renameSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { bundleOptions } from "./bundle-options.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));

/** Program name in dist/ → its entry point. */
const PROGRAMS = {
  server: "server/main.ts",
  harness: "harness/main.ts",
  "hand-agent": "hand-agent/main.ts",
  "mcp-proxy": "mcp-proxy/main.ts",
  tendon: "cli/main.ts",
};

const asked = process.argv.filter((word) => word.includes("=")).map((word) => word.split("="));

const entryPoints = (asked.length > 0 ? asked : Object.entries(PROGRAMS))
  .filter(([, source]) => existsSync(`${root}${source}`))
  .map(([name, source]) => ({ in: `${root}${source}`, out: name }));

const { outputFiles } = await build({
  ...bundleOptions(root),
  entryPoints,
  outdir: `${root}dist`,
  outExtension: { ".js": ".mjs" },
  sourcemap: "linked",
});

// A program that starts meanwhile reads the old bundle or the new one, never half of one.
for (const { path, contents } of outputFiles) {
  mkdirSync(dirname(path), { recursive: true });
  const draft = `${path}.${process.pid}`;
  writeFileSync(draft, contents);
  renameSync(draft, path);
}

if (!process.argv.includes("--quiet"))
  console.log(`built ${entryPoints.map((entry) => entry.out).join(", ")}`);
