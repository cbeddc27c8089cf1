/** Domains in the lists of web tools (pure): a host with all that is below it, where a path may follow. */
import { parseHost } from "../network/host-name.ts";

export interface Domain {
  readonly host: string;
  /** Without a slash at its end; empty: all of the host. */
  readonly path: string;
}

const MAX_CHARS = 255;
/** Names that mean something else in each network. */
const LOCAL = new Set(["localhost", "local", "internal", "localdomain", "invalid"]);

/** The domain, or what is wrong with it. */
export function parseDomain(text: string, { withPath }: { readonly withPath: boolean }): Domain | string {
  if (text === "" || text.length > MAX_CHARS) return `must have 1 to ${MAX_CHARS} characters`;
  if (/[^!-~]/.test(text)) return "must hold ASCII letters alone; of other names the form xn--… is meant";
  if (text.includes("://")) return "must not begin with a scheme";
  if (text.includes("*")) return "must hold no wildcard: what is below a host is meant with it";
  const [name = "", ...rest] = text.replace(/\/$/, "").split("/");
  if (name.includes(":")) return "must name no port";
  if (rest.length > 0 && !withPath) return "must be a host without a path";
  if (/[?#\\]/.test(text)) return "must be a host, and a path at most";
  const host = parseHost(name);
  if (host?.kind !== "name" || name.endsWith(".")) return "must be the name of a host, such as example.com";
  const labels = host.name.split(".");
  if (labels.length < 2 || LOCAL.has(labels.at(-1)!)) return "must be a name of the public internet";
  return { host: host.name, path: rest.length === 0 ? "" : `/${rest.join("/")}` };
}

/** Whether the URL lies in the domain: of `www.example.com` nothing of `example.com` does, the other way round it does. */
export function liesIn({ hostname, pathname }: URL, { host, path }: Domain): boolean {
  const name = hostname.toLowerCase().replace(/\.$/, "");
  if (name !== host && !name.endsWith(`.${host}`)) return false;
  return path === "" || pathname === path || pathname.startsWith(`${path}/`);
}
