/** As whom Postgres runs. It refuses to be root, so a root program needs one of two ways around; everyone else just starts it. */
import { type ChildProcess, execFile, type SpawnOptions, spawn } from "node:child_process";
import { readFile } from "node:fs/promises";

export type RunAs =
  | { kind: "self" }
  /** Root outside, another user inside a user namespace: files stay root's and no user is touched. */
  | { kind: "user_namespace"; uid: number; gid: number }
  /** A user that exists already. */
  | { kind: "user"; uid: number; gid: number; name: string };

/** Children get nothing of our environment: no key that we were given can be read from theirs. */
const ENVIRONMENT = {
  PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
  LC_ALL: "C",
  TZ: "UTC",
};

/** Starts `program` as `runAs`, in `/`, with an environment of its own. */
export function spawnAs(
  runAs: RunAs,
  program: string,
  args: readonly string[],
  environment: Record<string, string>,
  options: Pick<SpawnOptions, "detached" | "stdio">,
): ChildProcess {
  const common: SpawnOptions = { ...options, cwd: "/", env: { ...ENVIRONMENT, ...environment } };
  if (runAs.kind === "user_namespace") {
    // unshare replaces itself by the program, so the child's pid is the program's.
    return spawn("unshare", [...namespaceArgs(runAs), program, ...args], common);
  }
  if (runAs.kind === "user") return spawn(program, args, { ...common, uid: runAs.uid, gid: runAs.gid });
  return spawn(program, args, common);
}

function namespaceArgs({ uid, gid }: { uid: number; gid: number }): string[] {
  return ["--user", `--map-user=${uid}`, `--map-group=${gid}`, "--"];
}

/** Whether `runAs` can write `folder` and run `program` (with `-V`). */
export function canRun(
  runAs: RunAs,
  program: string,
  environment: Record<string, string>,
  folder: string,
): Promise<boolean> {
  const script = 'test -w "$1" && test -x "$1" && "$2" -V >/dev/null 2>&1';
  const args = ["-c", script, "sh", folder, program];
  const child = spawnAs(runAs, "/bin/sh", args, environment, { stdio: "ignore" });
  return new Promise((resolve) => {
    child.on("error", () => resolve(false));
    child.on("exit", (code) => resolve(code === 0));
  });
}

/** An unprivileged user that exists, the usual names first. Postgres wants one that the system can name. */
export async function unprivilegedUser(): Promise<{ uid: number; gid: number; name: string } | undefined> {
  const text = await readFile("/etc/passwd", "utf8").catch(() => "");
  const users = text.split("\n").flatMap((line) => {
    const [name, , uid, gid] = line.split(":");
    return name && Number(uid) > 0 ? [{ name, uid: Number(uid), gid: Number(gid) }] : [];
  });
  for (const wanted of ["postgres", "nobody", "daemon"]) {
    const found = users.find(({ name }) => name === wanted);
    if (found) return found;
  }
  return users[0];
}

/** The command line of a process, or "" when it is gone (or waits for its parent to notice its end). */
export async function commandLine(pid: number): Promise<string> {
  if (process.platform === "linux") {
    const text = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
    return text.replaceAll("\0", " ").trim();
  }
  return new Promise((resolve) => {
    execFile("ps", ["-ww", "-o", "command=", "-p", String(pid)], (error, stdout) =>
      resolve(error ? "" : stdout.trim()),
    );
  });
}
