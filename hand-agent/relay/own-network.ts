/** A network namespace of its own, where only loopback is there. */

/** A new namespace's loopback is down. Where there is neither ip nor ifconfig, sysfs takes the flag (IFF_UP | IFF_LOOPBACK). */
const BY_SYSFS = "mount -t sysfs -o nosuid,nodev,noexec tendon /sys && echo 0x9 >/sys/class/net/lo/flags";

/** For a shell that has just come into the namespace; ends it when loopback cannot be brought up. */
export const LOOPBACK_UP = [
  "ip link set lo up 2>/dev/null ||",
  "ifconfig lo 127.0.0.1 up 2>/dev/null ||",
  `unshare --mount /bin/sh -c '${BY_SYSFS}' ||`,
  '{ echo "loopback cannot be brought up; install iproute2" >&2; exit 1; }',
].join(" ");

/**
 * A command line that runs another in such a namespace. The process that is started is in it, and without root also in
 * the user namespace that owns it, in which it is root: what it becomes must drop that.
 */
export function ownNetworkArgv(argv: readonly string[], { asRoot }: { asRoot: boolean }): string[] {
  const user = asRoot ? [] : ["--user", "--map-root-user"];
  const script = `${LOOPBACK_UP}\nexec "$@"`;
  return ["unshare", ...user, "--net", "/bin/sh", "-c", script, "tendon-network", ...argv];
}
