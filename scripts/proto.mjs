// The contract's tools: `generate` makes proto/gen; `check` lints, looks for breaks against the baseline and for drift;
// `accept` moves the baseline on purpose, once proto/CHANGES.md says what broke and why.
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const baseline = "proto/baseline.binpb";
const generated = "proto/gen";

const buf = (...args) => execFileSync(process.execPath, [join(root, "node_modules/@bufbuild/buf/bin/buf"), ...args], { cwd: root, stdio: "inherit", env: { ...process.env, PATH: `${join(root, "node_modules/.bin")}:${process.env.PATH}` } });

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
  const fresh = mkdtempSync(join(tmpdir(), "tendon-proto-"));
  try {
    generateInto(fresh);
    const [expected, actual] = [join(fresh, generated), join(root, generated)];
    const names = new Set([...filesBelow(expected), ...filesBelow(actual)]);
    const same = (name) => existsSync(join(expected, name)) && existsSync(join(actual, name)) && readFileSync(join(expected, name)).equals(readFileSync(join(actual, name)));
    const drifted = [...names].filter((name) => !same(name));
    if (drifted.length > 0) {
      console.error(`${generated} is not what the protos give; run "npm run proto:generate". Different: ${drifted.join(", ")}`);
      process.exit(1);
    }
  } finally {
    rmSync(fresh, { recursive: true, force: true });
  }
}

function accept() {
  buf("build", "--output", baseline, "--exclude-source-info");
  const changes = readFileSync(join(root, "proto/CHANGES.md"), "utf8");
  console.log(`The baseline is what stands in proto/tendon now. Its last line in proto/CHANGES.md: ${changes.trim().split("\n").at(-1)}`);
}

const command = process.argv[2];
if (command === "generate") generateInto(root);
else if (command === "accept") accept();
else if (command === "check") {
  buf("lint");
  buf("format", "--diff", "--exit-code");
  buf("breaking", "--against", baseline);
  assertNoDrift();
  console.log("proto: lint, format, breaking changes and generated code are in order");
} else {
  console.error("usage: node scripts/proto.mjs generate|check|accept");
  process.exit(2);
}
