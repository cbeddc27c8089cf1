/** The ways in which a process hand can be kept apart from its host, and the command line that starts each. */
import { LOOPBACK_UP, ownNetworkArgv } from "../../relay/own-network.ts";
import { bubblewrapArgs } from "./bubblewrap.ts";
import { namespacesScript } from "./namespaces.ts";
import type { SandboxPlan } from "./sandbox-plan.ts";

/** Strongest first. */
export const ISOLATION_MODES = ["bubblewrap", "namespaces", "uid", "none"] as const;
export type IsolationMode = (typeof ISOLATION_MODES)[number];

export interface Identity {
  /** Whether the agent itself is root. */
  readonly asRoot: boolean;
  /** Who the hand's processes are: an own number where the agent is root, else the agent's. */
  readonly uid: number;
  readonly gid: number;
}

export interface LaunchInput {
  readonly mode: IsolationMode;
  readonly identity: Identity;
  readonly plan: SandboxPlan;
  readonly mountPoint: string;
  /** Whether the hand gets a network namespace of its own; `launchArgv`'s process is in it, with what it takes to enter. */
  readonly ownNetwork: boolean;
  /** The first process of the hand. */
  readonly init: readonly string[];
}

/** Whether the hand's processes live in a process namespace of their own, so that the end of its first ends all. */
export function hasPidNamespace(mode: IsolationMode): boolean {
  return mode === "bubblewrap" || mode === "namespaces";
}

export function launchArgv({ mode, identity, plan, mountPoint, ownNetwork, init }: LaunchInput): string[] {
  const dropped = [...dropPrivileges(mode, identity), ...init];
  switch (mode) {
    case "bubblewrap": {
      const argv = ["bwrap", ...bubblewrapArgs(plan, identity), ...dropped];
      return ownNetwork ? ownNetworkArgv(argv, identity) : argv;
    }
    case "namespaces": {
      const user = identity.asRoot ? [] : ["--user", "--map-root-user"];
      const network = ownNetwork ? ["--net"] : [];
      const script = (ownNetwork ? `${LOOPBACK_UP}\n` : "") + namespacesScript(plan, mountPoint);
      return [
        ...["unshare", ...user, ...network, "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"],
        ...["/bin/sh", "-c", script, "tendon-sandbox", ...dropped],
      ];
    }
    case "uid":
      return dropped;
    case "none":
      return [...init];
  }
}

const NO_CAPABILITIES = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"];

function dropPrivileges(mode: IsolationMode, { asRoot, uid, gid }: Identity): string[] {
  if (asRoot) return ["setpriv", `--reuid=${uid}`, `--regid=${gid}`, "--clear-groups", ...NO_CAPABILITIES];
  // bwrap has dropped everything already. Our own namespaces made us their root: a second one gives the uid back.
  if (mode === "bubblewrap") return [];
  return ["unshare", "--user", `--map-user=${uid}`, `--map-group=${gid}`, "setpriv", ...NO_CAPABILITIES];
}

/** What a person is told about a mode, in one line. */
export function describeIsolation(mode: IsolationMode, asRoot: boolean): string {
  switch (mode) {
    case "bubblewrap":
      return `hands run under bubblewrap${asRoot ? ", each as a uid of its own" : ""}: own files and processes, host read-only, network of the host`;
    case "namespaces":
      return `hands run in their own mount and process namespaces${asRoot ? ", each as a uid of its own" : ""}: host read-only, network of the host`;
    case "uid":
      return "hands run as a uid of their own, but see the host's files and processes; install bubblewrap for more";
    case "none":
      return asRoot
        ? "hands are NOT isolated: their commands run as root and can read all that root can, every key on this machine included; install bubblewrap or start the hand agent as another user"
        : "hands are NOT isolated: their commands can do what the hand agent's user can; install bubblewrap or allow user namespaces";
  }
}
