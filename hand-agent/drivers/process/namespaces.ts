/** The sandbox plan as a shell script that runs inside fresh mount, pid and (without root) user namespaces. */
import { parentsOf, type SandboxPlan } from "./sandbox-plan.ts";

/** Quotes for sh. */
export function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/**
 * The script builds the new root at `mountPoint`, makes it the root, and becomes its arguments.
 * Any step that fails ends it: a sandbox with a hole must not start.
 */
export function namespacesScript(plan: SandboxPlan, mountPoint: string): string {
  const at = (path: string) => quote(mountPoint + path);
  const dir = (path: string) => `mkdir -p ${[...parentsOf(path), path].map(at).join(" ")}`;
  const bindFile = (from: string, to: string) =>
    `mount --bind ${quote(from)} ${at(to)} && readonly_mount ${at(to)}`;
  return [
    "set -eu",
    "umask 022",
    READONLY_MOUNT,
    "mount --make-rprivate /",
    `mount -t tmpfs -o mode=0755,size=1m tendon ${at("")}`,
    ...plan.rootEntries.map((entry) =>
      entry.kind === "link"
        ? `ln -s ${quote(entry.target)} ${at(entry.path)}`
        : `mkdir ${at(entry.path)} && mount --rbind ${quote(entry.path)} ${at(entry.path)}`,
    ),
    `readonly_below ${at("")}`,
    `mkdir ${["/proc", "/dev", "/tmp", "/run"].map(at).join(" ")}`,
    `mount -t proc -o nosuid,nodev,noexec proc ${at("/proc")}`,
    `mount -t tmpfs -o mode=0755,size=1m tendon ${at("/dev")}`,
    ...["null", "zero", "full", "random", "urandom"].map(
      (name) => `: >${at(`/dev/${name}`)} && mount --bind /dev/${name} ${at(`/dev/${name}`)}`,
    ),
    `ln -s /proc/self/fd ${at("/dev/fd")}`,
    ...["stdin", "stdout", "stderr"].map((name, fd) => `ln -s /proc/self/fd/${fd} ${at(`/dev/${name}`)}`),
    `mkdir ${at("/dev/shm")} && mount -t tmpfs -o mode=1777,nosuid,nodev tendon ${at("/dev/shm")}`,
    `mount --bind ${quote(plan.tmpDir)} ${at("/tmp")}`,
    `if [ -d ${at("/var/tmp")} ]; then mount --bind ${quote(plan.tmpDir)} ${at("/var/tmp")}; fi`,
    ...(plan.resolvConf === undefined
      ? []
      : [
          `${dir(plan.resolvConf).replace(/ [^ ]+$/, "")} && : >${at(plan.resolvConf)}`,
          bindFile(plan.resolvConf, plan.resolvConf),
        ]),
    ...plan.hiddenDirs.map((path) => `mount -t tmpfs -o mode=0755,size=1m tendon ${at(path)}`),
    ...plan.hiddenFiles.map((path) => bindFile("/dev/null", path)),
    ...plan.writable.flatMap((path) => [dir(path), `mount --bind ${quote(path)} ${at(path)}`]),
    ...plan.mounts.map(
      ({ from, to, readOnly }) =>
        `[ -d ${at(to)} ] || mkdir -p ${at(to)}\nmount --bind ${quote(from)} ${at(to)}${readOnly ? ` && readonly_mount ${at(to)}` : ""}`,
    ),
    ...plan.overlays.map(({ from, to }) => bindFile(from, to)),
    ...plan.hiddenDirs.map((path) => `readonly_mount ${at(path)}`),
    `mkdir ${at("/.old")}`,
    `cd ${at("")}`,
    "pivot_root . .old",
    "cd /",
    "umount -l /.old",
    "rmdir /.old",
    "readonly_mount /",
    "readonly_mount /dev",
    'exec "$@"',
  ].join("\n");
}

// What others mount (a container's root, say) may go while this runs: only a mount that is still there must be read-only.
// In a user namespace a remount must repeat the flags that the mount came with, so they are read from mountinfo.
const READONLY_MOUNT = `readonly_mount() {
  flags=
  while read -r _ _ _ _ point options _; do
    if [ "$point" = "$1" ]; then flags=$options; fi
  done </proc/self/mountinfo
  mount -o "remount,bind,ro,\${flags#r?,}" "$1"
}
is_mounted() {
  while read -r _ _ _ _ point _; do
    if [ "$(printf '%b' "$point")" = "$1" ]; then return 0; fi
  done </proc/self/mountinfo
  return 1
}
readonly_below() {
  points=$(while read -r _ _ _ _ point _; do
    case $point in "$1"/*) printf '%s\\n' "$point" ;; esac
  done </proc/self/mountinfo)
  printf '%s\\n' "$points" | { while read -r point; do
    point=$(printf '%b' "$point")
    readonly_mount "$point" || if is_mounted "$point"; then exit 1; fi
  done; }
}`;
