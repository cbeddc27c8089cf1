/** Images for tests, made from files of this machine, because no registry is part of a test. */
import { execFile, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { chmod, copyFile, mkdir, mkdtemp, realpath, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import type { TestEngine } from "./docker.ts";

const run = promisify(execFile);

/** A shell and small programs in one static file: the least that a hand can be made of. It has no bash. */
export const BUSYBOX_IMAGE = "tendon-test/busybox:1";
/** What a usual distribution has: bash, the usual small programs, and Node. */
export const NODE_IMAGE = "tendon-test/node:1";

/** Busybox with bash, and what its busybox may not have. */
export const BASH_IMAGE = "tendon-test/bash:1";

export const GIT_IMAGE = "tendon-test/git:1";

/** Programs that tests of hands use, wherever this machine has them. */
const PROGRAMS = [
  ...[
    "bash",
    "sh",
    "cat",
    "chmod",
    "dd",
    "find",
    "head",
    "ls",
    "mkdir",
    "mkfifo",
    "mv",
    "readlink",
    "rm",
    "stat",
    "tail",
  ],
  ...[
    "sleep",
    "seq",
    "tr",
    "od",
    "touch",
    "ln",
    "grep",
    "rg",
    "basename",
    "setsid",
    "nohup",
    "env",
    "yes",
    "true",
    "false",
  ],
  ...[
    "id",
    "wc",
    "sort",
    "sed",
    "cp",
    "df",
    "kill",
    "printf",
    "test",
    "uname",
    "hostname",
    "timeout",
    "mktemp",
    "echo",
  ],
];

export async function ensureBusyboxImage(engine: TestEngine): Promise<string> {
  return ensure(engine, BUSYBOX_IMAGE, putBusybox);
}

/** For kernels that do not know what the usual small programs ask. */
export async function ensureBashImage(engine: TestEngine): Promise<string> {
  return ensure(engine, BASH_IMAGE, async (root) => {
    await putBusybox(root);
    for (const name of ["bash", "nohup"]) {
      const found = await which(name);
      if (found === undefined) throw new Error(`this machine has no ${name}`);
      await rm(join(root, "bin", name), { force: true });
      await copyProgram(root, found, `/bin/${name}`);
    }
  });
}

/** Busybox with bash and git over HTTP. */
export async function ensureGitImage(engine: TestEngine): Promise<string> {
  return ensure(engine, GIT_IMAGE, async (root) => {
    await putBusybox(root);
    for (const [name, to] of [
      ["bash", "/bin/bash"],
      ["git", "/usr/bin/git"],
    ] as const) {
      const found = await which(name);
      if (found === undefined) throw new Error(`this machine has no ${name}`);
      await rm(join(root, to), { force: true });
      await copyProgram(root, found, to);
    }
    const { stdout } = await run("git", ["--exec-path"]);
    const folder = stdout.trim();
    await copyProgram(root, join(folder, "git-remote-http"), join(folder, "git-remote-http"));
    await symlink("/usr/bin/git", join(root, folder, "git"));
  });
}

async function putBusybox(root: string): Promise<void> {
  const binary = join(root, "bin/busybox");
  await copyFile(existsSync("/usr/bin/busybox") ? "/usr/bin/busybox" : "/bin/busybox", binary);
  await chmod(binary, 0o755);
  const { stdout } = await run(binary, ["--list"]);
  for (const name of stdout.split("\n")) {
    if (name !== "" && name !== "busybox" && name !== "bash")
      await symlink("busybox", join(root, "bin", name));
  }
}

export async function ensureNodeImage(engine: TestEngine): Promise<string> {
  return ensure(engine, NODE_IMAGE, async (root) => {
    await symlink("bin", join(root, "sbin"));
    for (const name of PROGRAMS) {
      const found = await which(name);
      if (found !== undefined) await copyProgram(root, found, `/bin/${name}`);
    }
    await copyProgram(root, process.execPath, "/bin/node");
    // Loaded by name, when somebody looks up users and hosts.
    const libc = await librariesOf(process.execPath);
    const folder = dirname(
      libc.find((path) => path.includes("libc.so")) ?? "/lib/x86_64-linux-gnu/libc.so.6",
    );
    for (const name of ["libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"]) {
      if (existsSync(join(folder, name))) await copyInto(root, join(folder, name));
    }
  });
}

async function ensure(
  engine: TestEngine,
  tag: string,
  fill: (root: string) => Promise<void>,
): Promise<string> {
  if ((await engine.docker("images", "--quiet", tag)).trim() !== "") return tag;
  const root = await mkdtemp(join(tmpdir(), "tendon-image-"));
  try {
    for (const dir of ["bin", "etc", "proc", "sys", "dev"]) await mkdir(join(root, dir));
    await mkdir(join(root, "tmp"));
    await chmod(join(root, "tmp"), 0o1777);
    await chmod(root, 0o755);
    await writeFile(join(root, "etc/passwd"), "root:x:0:0:root:/:/bin/sh\n");
    await writeFile(join(root, "etc/group"), "root:x:0:\n");
    await writeFile(join(root, "etc/nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n");
    await fill(root);
    await importTree(engine, root, tag);
    return tag;
  } finally {
    await rm(root, { recursive: true, force: true });
  }
}

function importTree(engine: TestEngine, root: string, tag: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const tar = spawn("tar", ["-C", root, "--owner=0", "--group=0", "-c", "."], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const load = spawn("docker", ["--host", engine.host, "import", "--change", 'CMD ["/bin/sh"]', "-", tag], {
      stdio: [tar.stdout, "ignore", "inherit"],
    });
    tar.on("error", reject);
    load.on("error", reject);
    load.on("close", (code) =>
      code === 0 ? resolve() : reject(new Error(`docker import ended with ${code}`)),
    );
  });
}

async function copyProgram(root: string, from: string, to: string): Promise<void> {
  const target = join(root, to);
  await mkdir(dirname(target), { recursive: true });
  await copyFile(await realpath(from), target);
  await chmod(target, 0o755);
  for (const library of await librariesOf(from)) await copyInto(root, library);
}

/** At the same path, with all the links on the way to it replaced by itself. */
async function copyInto(root: string, path: string): Promise<void> {
  const target = join(root, path);
  if (existsSync(target)) return;
  await mkdir(dirname(target), { recursive: true });
  await copyFile(await realpath(path), target);
}

async function librariesOf(program: string): Promise<string[]> {
  const { stdout } = await run("ldd", [program]).catch(() => ({ stdout: "" }));
  return [...stdout.matchAll(/(\/\S+\.so[^\s)]*)/g)].map(([path]) => path);
}

async function which(name: string): Promise<string | undefined> {
  for (const dir of ["/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin"]) {
    if (existsSync(join(dir, name))) return join(dir, name);
  }
  return undefined;
}
