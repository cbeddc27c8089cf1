// Bundles each program into one file under dist/. Types are checked by `npm run types`, not here: a build takes about a second.
import { existsSync, mkdirSync, renameSync, writeFileSync } from "node:fs";
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

const entryPoints = Object.entries(PROGRAMS)
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
mkdirSync(`${root}dist`, { recursive: true });
for (const { path, contents } of outputFiles) {
  const draft = `${path}.${process.pid}`;
  writeFileSync(draft, contents);
  renameSync(draft, path);
}

if (!process.argv.includes("--quiet"))
  console.log(`built ${entryPoints.map((entry) => entry.out).join(", ")}`);
