/** gVisor's runtime `runsc` on an engine of a test's own, which needs no KVM and sets up no network for sandboxes. */
import { existsSync } from "node:fs";
import type { TestEngine } from "./docker.ts";
import { whyNoDocker } from "./docker.ts";
import { PrivateEngine } from "./private-engine.ts";

/** Where Debian's package puts it. */
const RUNSC = "/usr/bin/runsc";
/** A network stack of its own, that reaches nothing. */
export const RUNSC_ALONE = "runsc";
/** The network of the container, which is the kernel's. */
export const RUNSC_HOSTNET = "runsc-hostnet";

const RUNTIMES = {
  [RUNSC_ALONE]: { path: RUNSC, runtimeArgs: ["--platform=ptrace", "--network=none"] },
  [RUNSC_HOSTNET]: { path: RUNSC, runtimeArgs: ["--platform=ptrace", "--network=host"] },
};

/** Why this machine cannot run containers in gVisor; undefined where it can. */
export function whyNoGvisor(): string | undefined {
  const reason = whyNoDocker();
  if (reason !== undefined) return reason;
  if (process.getuid?.() !== 0) return "an engine of its own needs root";
  return existsSync(RUNSC) ? undefined : `${RUNSC} is not there (Debian's package runsc)`;
}

export function startGvisorEngine(): Promise<PrivateEngine> {
  return PrivateEngine.start({ diskMib: 1_024, config: { runtimes: RUNTIMES } });
}

/** Passes over the list in one look: a process that starts is without a name for longer than it then may run. */
const PASSES = 20;

/** Processes in the engine's sandboxes that sleep for this number, as their own kernels list them. */
export async function processesInSandboxes(engine: TestEngine, number: string): Promise<number> {
  const ids = (await engine.docker("ps", "--quiet")).split("\n").filter((id) => id !== "");
  // Without a process of its own, which would take its time too. NUL characters are left out by `read`.
  const names = [`sleep${number}`, `sleep0.0${number}`, `/bin/sleep${number}`].join("|");
  const pass = `for P in /proc/[0-9]*/cmdline; do L=; read -r L <$P; case $L in ${names}) echo $P ;; esac; done`;
  const look = `I=0; while [ $I -lt ${PASSES} ]; do I=$((I+1)); ${pass}; done 2>/dev/null; exit 0`;
  const seen = ids.map(async (id) => {
    const paths = await engine.docker("exec", id, "/bin/sh", "-c", look).catch(() => "");
    return new Set(paths.split("\n").filter((path) => path !== "")).size;
  });
  return (await Promise.all(seen)).reduce((sum, count) => sum + count, 0);
}
