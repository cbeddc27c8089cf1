/** Recognises a connection to the relay as an origin server: its first request is for `/git/<host>/<path>`. */
import { parseTarget, type Target } from "../../kit/network/host-name.ts";
import type { ByteSource } from "./byte-source.ts";

const PREFIX = "/git/";
const LONGEST_METHOD = 16;
/** A method, the prefix, and a host with its port. */
const MAX_START = 400;
const HTTPS_PORT = 443;

export type FirstRequest =
  /** Anything else; nothing was taken. */
  | { readonly kind: "other" }
  /** Git; without a target where it names no host. */
  | { readonly kind: "git"; readonly target: Target | undefined }
  /** The other side ended before it was known. */
  | { readonly kind: "gone" };

/** Reads no more than it takes to know, and leaves all of it to be read again. */
export async function readFirstRequest(source: ByteSource): Promise<FirstRequest> {
  for (;;) {
    const start = source.buffered.toString("latin1", 0, MAX_START);
    const [, authority] = /^[A-Z]+ \/git\/([^/ ]*)[/ ]/.exec(start) ?? [];
    if (authority !== undefined) return { kind: "git", target: parseTarget(authority, HTTPS_PORT) };
    if (!mayBeGit(start)) return { kind: "other" };
    if (start.length === MAX_START) return { kind: "git", target: undefined };
    if (!(await source.fill(source.buffered.length + 1))) return { kind: "gone" };
  }
}

function mayBeGit(start: string): boolean {
  const space = start.indexOf(" ");
  if (space < 0) return start.length <= LONGEST_METHOD && /^[A-Z]*$/.test(start);
  const path = start.slice(space + 1);
  return PREFIX.startsWith(path.slice(0, PREFIX.length)) && /^[A-Z]+ /.test(start) && !path.includes("\n");
}
