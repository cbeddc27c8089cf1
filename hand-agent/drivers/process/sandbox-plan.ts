/**
 * What a hand sees of its host, as data; bubblewrap and our own namespace script are two renderings of one plan.
 *
 * The root is empty. Of the host only the directories that hold programs and libraries are bound, read-only. Homes,
 * /run (sockets), /srv, /mnt and unknown top-level directories are not there at all; hidden paths below a bound
 * directory are covered. The hand's own directories are bound writable at the same path as outside, so that a path
 * means the same to the agent and to the hand.
 */
import { lstatSync, readdirSync, readlinkSync, realpathSync, statSync } from "node:fs";
import { sep } from "node:path";

export type RootEntry =
  | { readonly kind: "bind"; readonly path: string }
  | { readonly kind: "link"; readonly path: string; readonly target: string };

export interface SandboxPlan {
  readonly rootEntries: readonly RootEntry[];
  readonly hiddenDirs: readonly string[];
  readonly hiddenFiles: readonly string[];
  /** A file that /etc/resolv.conf leads to and that would be out of sight. */
  readonly resolvConf: string | undefined;
  /** Directories of the hand, bound at the same path. */
  readonly writable: readonly string[];
  /** Directories bound elsewhere, those that lie in others after them. */
  readonly mounts: readonly { readonly from: string; readonly to: string; readonly readOnly: boolean }[];
  /** Bound at /tmp and /var/tmp. */
  readonly tmpDir: string;
  /** Files bound over others, e.g. a passwd file with an entry for the hand's uid. */
  readonly overlays: readonly { readonly from: string; readonly to: string }[];
}

const VISIBLE = /^(bin|sbin|lib|lib32|lib64|libx32|usr|etc|opt|var|nix|gnu)$/;

export function planSandbox(options: {
  hiddenPaths: readonly string[];
  writable: readonly string[];
  mounts?: SandboxPlan["mounts"];
  tmpDir: string;
  overlays: SandboxPlan["overlays"];
}): SandboxPlan {
  const rootEntries = readdirSync("/")
    .filter((name) => VISIBLE.test(name))
    .map(rootEntry);
  const bound = rootEntries.flatMap((entry) => (entry.kind === "bind" ? [entry.path] : []));
  const dirs = new Set<string>();
  const files = new Set<string>();
  for (const hidden of options.hiddenPaths) {
    const real = realOrUndefined(hidden);
    // Only what a bound directory would show needs a cover.
    if (real === undefined || !bound.some((path) => real.startsWith(path + sep))) continue;
    (statSync(real).isDirectory() ? dirs : files).add(real);
  }
  const resolv = realOrUndefined("/etc/resolv.conf");
  return {
    rootEntries,
    hiddenDirs: [...dirs].sort(),
    hiddenFiles: [...files].sort(),
    resolvConf: resolv?.startsWith("/run/") ? resolv : undefined,
    writable: options.writable,
    mounts: options.mounts ?? [],
    tmpDir: options.tmpDir,
    overlays: options.overlays,
  };
}

function rootEntry(name: string): RootEntry {
  const path = `/${name}`;
  return lstatSync(path).isSymbolicLink()
    ? { kind: "link", path, target: readlinkSync(path) }
    : { kind: "bind", path };
}

function realOrUndefined(path: string): string | undefined {
  try {
    return realpathSync(path);
  } catch {
    return undefined;
  }
}

/** All parents of `path` below the root, the nearest to the root first. */
export function parentsOf(path: string): string[] {
  const parts = path.split(sep).slice(1, -1);
  return parts.map((_, i) => `/${parts.slice(0, i + 1).join(sep)}`);
}
