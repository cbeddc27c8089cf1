/** The sandbox plan as arguments of `bwrap`. */
import { parentsOf, type SandboxPlan } from "./sandbox-plan.ts";

/** `asRoot`: no user namespace is needed, and the capabilities that changing the uid takes are kept until it is done. */
export function bubblewrapArgs(
  plan: SandboxPlan,
  options: { asRoot: boolean; uid: number; gid: number },
): string[] {
  const identity = options.asRoot
    ? ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"].flatMap((name) => ["--cap-add", name])
    : // In a user namespace with a network of its own we are its root, whose rights bwrap would pass on.
      ["--unshare-user", "--uid", `${options.uid}`, "--gid", `${options.gid}`, "--cap-drop", "ALL"];
  return [
    ...["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"],
    ...["--die-with-parent", "--as-pid-1", ...identity],
    ...plan.rootEntries.flatMap((entry) =>
      entry.kind === "bind" ? ["--ro-bind", entry.path, entry.path] : ["--symlink", entry.target, entry.path],
    ),
    ...["--proc", "/proc", "--dev", "/dev", "--bind", plan.tmpDir, "/tmp", "--dir", "/run"],
    ...(plan.rootEntries.some((entry) => entry.path === "/var") ? ["--bind", plan.tmpDir, "/var/tmp"] : []),
    ...(plan.resolvConf === undefined ? [] : ["--ro-bind", plan.resolvConf, plan.resolvConf]),
    ...plan.hiddenDirs.flatMap((path) => ["--perms", "0755", "--tmpfs", path]),
    ...plan.hiddenFiles.flatMap((path) => ["--ro-bind", "/dev/null", path]),
    ...plan.writable.flatMap((path) => [
      ...parentsOf(path).flatMap((parent) => ["--perms", "0755", "--dir", parent]),
      ...["--bind", path, path],
    ]),
    ...plan.mounts.flatMap(({ from, to, readOnly }) => [readOnly ? "--ro-bind" : "--bind", from, to]),
    ...plan.overlays.flatMap(({ from, to }) => ["--ro-bind", from, to]),
    ...plan.hiddenDirs.flatMap((path) => ["--remount-ro", path]),
    ...["--remount-ro", "/", "--chdir", "/"],
  ];
}
