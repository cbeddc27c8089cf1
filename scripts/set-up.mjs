// Installs and builds what is missing or older than its sources. Needs nothing but Node and npm; does nothing when all is there.
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const root = fileURLToPath(new URL("..", import.meta.url));
const SOURCES = [
  "kit",
  "server",
  "harness",
  "hand-agent",
  "mcp-proxy",
  "cli",
  "proto/gen",
  "package-lock.json",
  "scripts/build.mjs",
  "scripts/bundle-options.mjs",
];
const PROGRAMS = ["server", "harness", "hand-agent", "mcp-proxy", "tendon"];
const MIN_NODE = 20;

const mtimeMs = (path) => (existsSync(path) ? statSync(path).mtimeMs : 0);

function newestBelow(path) {
  const stat = statSync(path);
  if (!stat.isDirectory()) return stat.mtimeMs;
  let newest = 0;
  for (const entry of readdirSync(path, { withFileTypes: true })) {
    if (entry.name.endsWith(".test.ts")) continue;
    newest = Math.max(newest, newestBelow(join(path, entry.name)));
  }
  return newest;
}

function assertNode() {
  const major = Number(process.versions.node.split(".")[0]);
  if (major >= MIN_NODE) return;
  console.error(`Tendon needs Node ${MIN_NODE} or newer; this is Node ${process.versions.node}.`);
  process.exit(1);
}

function run(what, command, args) {
  const startedMs = performance.now();
  console.error(`${what} …`);
  try {
    execFileSync(command, args, {
      cwd: root,
      stdio: ["ignore", process.stderr, process.stderr],
      shell: process.platform === "win32",
    });
  } catch (error) {
    const how = typeof error.status === "number" ? `it ended with ${error.status}` : error.message;
    console.error(`${what} failed (${command} ${args.join(" ")}): ${how}`);
    process.exit(1);
  }
  console.error(`${what}: done in ${((performance.now() - startedMs) / 1000).toFixed(1)} s`);
}

/** Whether npm's own record of what it installed is of this lock file; without `withDev`, of the part that programs need. */
function isInstalled(withDev) {
  const marker = join(root, "node_modules/.package-lock.json");
  if (!existsSync(marker)) return false;
  const wanted = JSON.parse(readFileSync(join(root, "package-lock.json"), "utf8")).packages;
  const present = JSON.parse(readFileSync(marker, "utf8")).packages;
  return (
    Object.entries(present).every(([path, entry]) => wanted[path]?.version === entry.version) &&
    Object.entries(wanted).every(
      ([path, entry]) =>
        path === "" || entry.optional || (entry.dev && !withDev) || present[path] !== undefined,
    )
  );
}

/**
 * Ends the process with one clear line when it cannot. `withDev`: also what tests and benches need, which is several times
 * as much.
 */
export function setUp({ withDev = false } = {}) {
  assertNode();
  // No dependency needs its install script for the main job.
  if (!isInstalled(withDev)) {
    const extent = withDev ? "--include=dev" : "--omit=dev";
    run("Installing packages", "npm", ["ci", extent, "--ignore-scripts", "--no-audit", "--no-fund"]);
  }
  const newest = Math.max(...SOURCES.map((source) => newestBelow(join(root, source))));
  const oldestBuilt = Math.min(...PROGRAMS.map((name) => mtimeMs(join(root, `dist/${name}.mjs`))));
  if (oldestBuilt < newest) run("Building", process.execPath, [join(root, "scripts/build.mjs"), "--quiet"]);
}
