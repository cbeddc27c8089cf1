/** What a foreign client needs of the machine, and how it is built; everything that is made lies in a temporary folder. */
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const execFileAsync = promisify(execFile);

export const root = fileURLToPath(new URL("../..", import.meta.url));
const buf = join(root, "node_modules/@bufbuild/buf/bin/buf");

export interface RunOptions {
  cwd?: string;
  env?: Readonly<Record<string, string>>;
  timeoutMs?: number;
}

/** Runs a program to its end and gives what it printed; throws with all of that when it fails. */
export async function run(
  command: string,
  args: readonly string[],
  { cwd = root, env = {}, timeoutMs = 60_000 }: RunOptions = {},
): Promise<string> {
  try {
    const options = { cwd, env: { ...process.env, ...env }, timeout: timeoutMs, maxBuffer: 64 * 1024 * 1024 };
    return (await execFileAsync(command, args, options)).stdout;
  } catch (error) {
    const { stdout, stderr, killed, code } = error as {
      stdout: string;
      stderr: string;
      killed: boolean;
      code: unknown;
    };
    const how = killed ? `did not end within ${timeoutMs} ms` : `ended with ${code}`;
    throw new Error(`${command} ${args[0] ?? ""} ${how}\n${stderr}${stdout}`);
  }
}

export function runBuf(args: readonly string[], options?: RunOptions): Promise<string> {
  return run(process.execPath, [buf, ...args], options);
}

/** Whether a command runs at all. */
async function works(command: string, args: readonly string[]): Promise<boolean> {
  return run(command, args, { timeoutMs: 30_000 }).then(
    () => true,
    () => false,
  );
}

/** Why the programs cannot be built on this machine; undefined when they can. */
export type Missing = string | undefined;

/** Debian's own interpreter: another one on the PATH does not see Debian's packages. */
export const PYTHON = "/usr/bin/python3";

export async function missingForPython(): Promise<Missing> {
  if (!(await works(PYTHON, ["-c", "import cryptography, google.protobuf, grpc, jwt"]))) {
    return "needs Debian's python3-grpcio, python3-protobuf, python3-cryptography and python3-jwt";
  }
  if (!(await works("protoc", ["--version"])) || !(await works("which", ["grpc_python_plugin"]))) {
    return "needs Debian's protobuf-compiler and protobuf-compiler-grpc";
  }
  return undefined;
}

export async function missingForGo(): Promise<Missing> {
  // The version that go.mod asks for, without looking for a newer toolchain on the network.
  const version = await run("go", ["env", "GOVERSION"], { env: { GOTOOLCHAIN: "local" } }).catch(() => "");
  const [, minor] = /^go1\.(\d+)/.exec(version) ?? [];
  if (minor === undefined || Number(minor) < 24) return "needs Go 1.24 or newer";
  const cwd = join(root, "test/interop/go");
  const downloaded = await run("go", ["mod", "download"], { cwd, timeoutMs: 120_000 }).catch(
    (error) => error,
  );
  return downloaded instanceof Error
    ? "needs Go modules that are neither here nor can be downloaded"
    : undefined;
}

export async function missingForCpp(): Promise<Missing> {
  const libraries = await works("pkg-config", ["--exists", "grpc++", "protobuf"]);
  const compilers = await Promise.all(
    [
      ["g++", "--version"],
      ["make", "--version"],
      ["protoc", "--version"],
      ["which", "grpc_cpp_plugin"],
    ].map(([command, ...args]) => works(command!, args)),
  );
  if (libraries && compilers.every(Boolean)) return undefined;
  return "needs g++, make, pkg-config and Debian's libgrpc++-dev, libprotobuf-dev, protobuf-compiler and protobuf-compiler-grpc";
}

export interface Workshop {
  readonly folder: string;
  remove(): Promise<void>;
}

export async function createWorkshop(): Promise<Workshop> {
  const folder = await mkdtemp(join(tmpdir(), "tendon-interop-"));
  return { folder, remove: () => rm(folder, { recursive: true, force: true }) };
}

/** Python modules for the contract; gives their folder. */
export async function buildPython(folder: string): Promise<string> {
  const stubs = join(folder, "python");
  await mkdir(stubs);
  await generate("python", stubs);
  return stubs;
}

/** Gives the program's path. */
export async function buildGo(folder: string): Promise<string> {
  const source = join(folder, "go");
  await cp(join(root, "test/interop/go"), source, { recursive: true });
  const tools = join(folder, "go-tools");
  const env = {
    GOFLAGS: "-mod=readonly -buildvcs=false",
    GOTOOLCHAIN: "local",
    GOBIN: tools,
    CGO_ENABLED: "0",
  };
  // Nothing has to be fast but the compiler, which makes Go's own packages first where nobody has built anything before.
  const flags = ["-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w"];
  const inSource = { cwd: source, env, timeoutMs: BUILD_WITHIN_MS };
  await run("go", ["install", ...flags, "tool"], inSource);
  await generate("go", source, { PATH: `${tools}:${process.env.PATH}` });
  await run("go", ["build", ...flags, "-o", "interop", "."], inSource);
  return join(source, "interop");
}

/** Gives the program's path. */
export async function buildCpp(folder: string): Promise<string> {
  const source = join(folder, "cpp");
  await cp(join(root, "test/interop/cpp"), source, { recursive: true });
  await generate("cpp", source);
  await run("make", ["-s"], { cwd: source, timeoutMs: BUILD_WITHIN_MS });
  return join(source, "interop");
}

/** For what hangs: compilers of several languages work at once, beside other tests. */
export const BUILD_WITHIN_MS = 600_000;

/** What `test/interop/<language>/buf.gen.yaml` says. */
async function generate(language: string, into: string, env: Record<string, string> = {}): Promise<void> {
  const template = `test/interop/${language}/buf.gen.yaml`;
  await runBuf(["generate", "--template", template, "--output", into], { env });
}
