// The contract's tools: `generate` makes proto/gen; `check` lints, looks for breaks against the baseline and for drift;
// `accept` moves the baseline on purpose, once proto/CHANGES.md says what broke and why.
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const baseline = "proto/baseline.binpb";
const generated = "proto/gen";

/** Ends the program when buf has something to say; it has said it then. */
function buf(...args) {
  const program = join(root, "node_modules/@bufbuild/buf/bin/buf");
  const env = { ...process.env, PATH: `${join(root, "node_modules/.bin")}:${process.env.PATH}` };
  const { status } = spawnSync(process.execPath, [program, ...args], { cwd: root, stdio: "inherit", env });
  if (status !== 0) process.exit(status ?? 1);
}

function temporaryFolder() {
  const folder = mkdtempSync(join(tmpdir(), "tendon-proto-"));
  process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

function generateInto(folder) {
  buf("generate", "--include-imports", "--output", folder);
}

function filesBelow(folder) {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(folder, join(entry.parentPath ?? entry.path, entry.name)))
    .sort();
}

function assertNoDrift() {
  const fresh = temporaryFolder();
  generateInto(fresh);
  const [expected, actual] = [join(fresh, generated), join(root, generated)];
  const names = new Set([...filesBelow(expected), ...filesBelow(actual)]);
  const same = (name) =>
    existsSync(join(expected, name)) &&
    existsSync(join(actual, name)) &&
    readFileSync(join(expected, name)).equals(readFileSync(join(actual, name)));
  const drifted = [...names].filter((name) => !same(name));
  if (drifted.length > 0) {
    console.error(
      `${generated} is not what the protos give; run "npm run proto:generate". Different: ${drifted.join(", ")}`,
    );
    process.exit(1);
  }
}

/** Compares images: the protos are two modules, the baseline is one image of both. */
function assertNoBreaks() {
  const now = join(temporaryFolder(), "now.binpb");
  buf("build", "--output", now);
  buf("breaking", now, "--against", baseline, "--config", "buf.yaml");
}

function accept() {
  buf("build", "--output", baseline, "--exclude-source-info");
  const changes = readFileSync(join(root, "proto/CHANGES.md"), "utf8");
  console.log(
    `The baseline is what stands in proto/tendon now. Its last line in proto/CHANGES.md: ${changes.trim().split("\n").at(-1)}`,
  );
}

const command = process.argv[2];
if (command === "generate") generateInto(root);
else if (command === "accept") accept();
else if (command === "check") {
  buf("lint");
  buf("format", "--diff", "--exit-code");
  assertNoBreaks();
  assertNoDrift();
  console.log("proto: lint, format, breaking changes and generated code are in order");
} else {
  console.error("usage: node scripts/proto.mjs generate|check|accept");
  process.exit(2);
}
