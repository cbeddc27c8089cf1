/** The official SDKs of other languages: what the machine needs for each, and how it is installed, once for all checkouts. */
import { createHash } from "node:crypto";
import { access, copyFile, mkdir, mkdtemp, readFile, rename, rm } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { isWholeRun } from "../../kit/fault-trials.ts";
import { type Missing, root, run } from "../toolchain.ts";

/** Runs the acceptance against a server and gives what it printed; throws with that when it fails. */
export type RunAcceptance = (env: Readonly<Record<string, string>>) => Promise<string>;

interface Language {
  missing(): Promise<Missing>;
  install(): Promise<RunAcceptance>;
}

export const INSTALL_WITHIN_MS = 600_000;
/** For what hangs: beside compilers and other tests a virtual machine takes its time. */
const RUN_WITHIN_MS = 170_000;

const folderOf = (language: string) => join(root, "test/interop/sdks", language);
const cache = join(process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache"), "tendon-interop");

const commandOutput = (command: string, ...args: string[]) =>
  run(command, args, { timeoutMs: 60_000, env: { GOTOOLCHAIN: "local" } }).catch(() => undefined);

/** Makes a folder of the cache unless it is there: aside, and then put into place whole. */
async function cached(name: string, fill: (folder: string) => Promise<void>): Promise<string> {
  const folder = join(cache, name);
  if (await exists(folder)) return folder;
  await mkdir(cache, { recursive: true });
  const aside = await mkdtemp(join(cache, "making-"));
  try {
    await fill(aside);
    await rename(aside, folder);
  } catch (error) {
    await rm(aside, { recursive: true, force: true });
    // Somebody else was faster.
    if (!(await exists(folder))) throw error;
  }
  return folder;
}

/** Of the files of a language's program. */
async function digestOf(language: string, names: readonly string[]): Promise<string> {
  const hash = createHash("sha256");
  for (const name of names) hash.update(await readFile(join(folderOf(language), name)));
  return hash.digest("hex").slice(0, 16);
}

function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

const whyNot = (what: string) => (error: Error) =>
  `${what} is neither here nor can be downloaded: ${error.message.split("\n", 1)[0]}`;

const PYTHON_VERSION = "import sys, sysconfig; print(sys.implementation.cache_tag, sysconfig.get_platform())";

async function pythonPackages(): Promise<string> {
  const version = ((await commandOutput("python3", "-c", PYTHON_VERSION)) ?? "").trim().replaceAll(" ", "-");
  const requirements = join(folderOf("python"), "requirements.txt");
  return cached(`python-${version}-${await digestOf("python", ["requirements.txt"])}`, async (folder) => {
    const quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--root-user-action=ignore"];
    const args = ["-m", "pip", "install", ...quiet, "--target", folder, "-r", requirements];
    await run("python3", args, { timeoutMs: INSTALL_WITHIN_MS });
  });
}

const python: Language = {
  async missing() {
    const version = await commandOutput("python3", "-c", "import sys; print(sys.version_info >= (3, 9))");
    if (version?.trim() !== "True") return "needs Python 3.9 or newer";
    if ((await commandOutput("python3", "-m", "pip", "--version")) === undefined) return "needs pip";
    return pythonPackages().then(() => undefined, whyNot("the SDK for Python"));
  },
  async install() {
    const packages = await pythonPackages();
    const file = join(folderOf("python"), "acceptance.py");
    return (env) =>
      run("python3", [file], {
        env: { ...env, PYTHONPATH: packages, PYTHONDONTWRITEBYTECODE: "1" },
        timeoutMs: RUN_WITHIN_MS,
      });
  },
};

/** Of the program, in the cache. */
async function goName(): Promise<string> {
  const version = (await commandOutput("go", "env", "GOVERSION"))?.trim();
  return `go-${version}-${await digestOf("go", ["main.go", "go.mod", "go.sum"])}`;
}

/** The program, compiled once for each state of its source: the SDK alone takes a minute of one processor. */
async function goProgram(): Promise<string> {
  const folder = await cached(await goName(), async (made) => {
    const env = { GOFLAGS: "-mod=readonly -buildvcs=false", GOTOOLCHAIN: "local" };
    // Nothing has to be fast but the compiler.
    const flags = ["-gcflags=github.com/anthropics/anthropic-sdk-go/v2=-N -l", "-ldflags=-s -w"];
    const args = ["build", ...flags, "-o", join(made, "acceptance"), "."];
    await run("go", args, { cwd: folderOf("go"), env, timeoutMs: INSTALL_WITHIN_MS });
  });
  return join(folder, "acceptance");
}

const go: Language = {
  async missing() {
    const version = (await commandOutput("go", "env", "GOVERSION")) ?? "";
    const [, minor] = /^go1\.(\d+)/.exec(version) ?? [];
    if (minor === undefined || Number(minor) < 25) return "needs Go 1.25 or newer";
    if (!isWholeRun && !(await exists(join(cache, await goName()))))
      return "the SDK for Go takes minutes to compile the first time: `npm run test:faults` does it";
    const options = { cwd: folderOf("go"), env: { GOTOOLCHAIN: "local" }, timeoutMs: INSTALL_WITHIN_MS };
    const download = run("go", ["mod", "download"], options);
    return download.then(() => undefined, whyNot("the SDK for Go"));
  },
  async install() {
    const program = await goProgram();
    return (env) => run(program, [], { env, timeoutMs: RUN_WITHIN_MS });
  },
};

async function javaLibraries(): Promise<string> {
  return cached(`java-libraries-${await digestOf("java", ["pom.xml"])}`, async (folder) => {
    await copyFile(join(folderOf("java"), "pom.xml"), join(folder, "pom.xml"));
    const goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";
    const args = ["--quiet", "--batch-mode", goal, `-DoutputDirectory=${folder}`, "-DincludeScope=runtime"];
    await run("mvn", args, { cwd: folder, timeoutMs: INSTALL_WITHIN_MS });
  });
}

async function javaClasses(libraries: string): Promise<string> {
  const version = (await commandOutput("javac", "--version"))?.trim().replace(" ", "-");
  return cached(`java-${version}-${await digestOf("java", ["Acceptance.java", "pom.xml"])}`, async (made) => {
    const source = join(folderOf("java"), "Acceptance.java");
    const args = ["-proc:none", "-d", made, "-cp", join(libraries, "*"), source];
    await run("javac", args, { timeoutMs: INSTALL_WITHIN_MS });
  });
}

const java: Language = {
  async missing() {
    const version = await commandOutput("javac", "--version");
    if (Number(/^javac (\d+)/.exec(version ?? "")?.[1] ?? 0) < 17) return "needs a JDK 17 or newer";
    if ((await commandOutput("mvn", "--version")) === undefined) return "needs Maven";
    return javaLibraries().then(() => undefined, whyNot("the SDK for Java"));
  },
  async install() {
    const libraries = await javaLibraries();
    const classes = `${await javaClasses(libraries)}:${join(libraries, "*")}`;
    const args = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classes, "Acceptance"];
    return (env) => run("java", args, { env, timeoutMs: RUN_WITHIN_MS });
  },
};

export const LANGUAGES: readonly (readonly [name: string, language: Language])[] = [
  ["Python", python],
  ["Go", go],
  ["Java", java],
];
