/**
 * An OpenSSH server on loopback and one multiplexed connection to it, for a user with a light shell: the fairest remote
 * shell to compare with. Needs root and Debian's openssh-server; nothing of the machine is changed: the server sees its
 * own /etc/passwd, in which root's shell is /bin/sh, and its own /run.
 */
import { type ChildProcess, execFile, execFileSync, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { eventually } from "../../test/kit/eventually.ts";

const run = promisify(execFile);
const SSHD = "/usr/sbin/sshd";

export interface OpenSsh {
  /** Runs `true` on the other side over the open connection. */
  runTrue(): Promise<void>;
  stop(): Promise<void>;
}

/** Why this machine cannot, or undefined when it can. */
export function whyNoOpenSsh(): string | undefined {
  if (!existsSync(SSHD)) return "openssh-server is not installed";
  if (process.getuid?.() !== 0) return "needs root";
  return undefined;
}

export async function startOpenSsh(): Promise<OpenSsh> {
  const folder = mkdtempSync(join(tmpdir(), "tendon-ssh-"));
  const port = await freePort();
  writeConfig(folder, port);
  const server = startServer(folder);
  const options = clientOptions(folder, port);
  await eventually(() => isListening(port), { withinMs: 15_000 });
  const master = spawn("ssh", [...options, "-M", "-N", "root@127.0.0.1"], { stdio: "ignore" });
  try {
    await eventually(
      async () => (await run("ssh", [...options, "-O", "check", "root@127.0.0.1"])) !== undefined,
      {
        withinMs: 15_000,
      },
    );
  } catch (error) {
    const log = existsSync(join(folder, "log")) ? readFileSync(join(folder, "log"), "utf8") : "";
    await end(folder, [master, server]);
    throw new Error(`the SSH connection does not stand: ${String(error)}\n${log}`);
  }
  return {
    async runTrue() {
      await run("ssh", [...options, "root@127.0.0.1", "true"]);
    },
    stop: () => end(folder, [master, server]),
  };
}

function writeConfig(folder: string, port: number): void {
  const key = (name: string) =>
    execFileSync("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-f", join(folder, name)]);
  key("host");
  key("user");
  mkdirSync(join(folder, "home"), { mode: 0o700 });
  const passwd = readFileSync("/etc/passwd", "utf8").replace(
    /^root:.*$/m,
    `root:x:0:0:root:${join(folder, "home")}:/bin/sh`,
  );
  writeFileSync(join(folder, "passwd"), passwd);
  const config = [
    `Port ${port}`,
    "ListenAddress 127.0.0.1",
    `HostKey ${join(folder, "host")}`,
    `AuthorizedKeysFile ${join(folder, "user.pub")}`,
    "PermitRootLogin prohibit-password",
    "PasswordAuthentication no",
    "UsePAM no",
    "StrictModes no",
    "PrintMotd no",
    "PrintLastLog no",
    "PidFile none",
  ];
  writeFileSync(join(folder, "sshd_config"), `${config.join("\n")}\n`);
}

function startServer(folder: string): ChildProcess {
  const script = `mount --bind "${folder}/passwd" /etc/passwd && mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec ${SSHD} -D -E "${folder}/log" -f "${folder}/sshd_config"`;
  return spawn("unshare", ["--mount", "sh", "-c", script], { stdio: "ignore" });
}

function clientOptions(folder: string, port: number): string[] {
  const options = {
    ControlPath: join(folder, "control"),
    IdentityFile: join(folder, "user"),
    StrictHostKeyChecking: "no",
    UserKnownHostsFile: "/dev/null",
    LogLevel: "ERROR",
  };
  return [
    "-F",
    "none",
    "-p",
    String(port),
    ...Object.entries(options).flatMap(([name, value]) => ["-o", `${name}=${value}`]),
  ];
}

async function end(folder: string, children: readonly ChildProcess[]): Promise<void> {
  for (const child of children) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGTERM");
    await ended;
  }
  rmSync(folder, { recursive: true, force: true });
}

function isListening(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1", () => resolve(true));
    socket.on("error", () => resolve(false));
    socket.on("connect", () => socket.destroy());
  });
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer().once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}
