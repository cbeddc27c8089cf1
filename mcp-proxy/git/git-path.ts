/** What of a git server a sandbox may ask for: the four requests of smart HTTP, and nothing else. */

export interface GitRequest {
  /** Without credentials, `https://host[:port]/path`: what a credential is looked up by. */
  readonly repositoryUrl: string;
  /** All of it, as it is sent. */
  readonly url: string;
  readonly service: "git-upload-pack" | "git-receive-pack";
  readonly isAdvertisement: boolean;
}

const LONGEST = 2_048;
const ADVERTISEMENT = /^(\/.+)\/info\/refs\?service=(git-upload-pack|git-receive-pack)$/;
const EXCHANGE = /^(\/.+)\/(git-upload-pack|git-receive-pack)$/;

/** `target` begins with `/git/<authority>`. Undefined for what is no request of git's, or is not for this authority. */
export function parseGitRequest(
  method: string,
  target: string,
  { host, port }: { readonly host: string; readonly port: number },
): GitRequest | undefined {
  const [, authority = "", path = ""] = /^\/git\/([^/]+)(\/.*)$/.exec(target) ?? [];
  if (target.length > LONGEST || !isAuthority(authority, host, port)) return undefined;
  const found = method === "GET" ? ADVERTISEMENT.exec(path) : method === "POST" ? EXCHANGE.exec(path) : null;
  const [, repository = "", service] = found ?? [];
  if (service === undefined || !repository.slice(1).split("/").every(isPlainPart)) return undefined;
  const origin = originOf(host, port);
  return {
    repositoryUrl: origin + repository,
    url: origin + path,
    service: service as GitRequest["service"],
    isAdvertisement: method === "GET",
  };
}

export interface LfsRequest {
  readonly repositoryUrl: string;
  /** All of it, as it is sent; for `action` what was sealed instead. */
  readonly url: string;
  readonly kind: "batch" | "locks" | "action";
}

const LFS =
  /^(\/.+)\/info\/lfs(\/objects\/batch|\/locks(?:\/[\w-]{1,128}\/unlock|\/verify)?(?:\?[\w=&%.+/-]*)?|\/tendon\/[\w.-]+)$/;
const LONGEST_ACTION = 16_000;
export const LFS_ACTION_PATH = "/info/lfs/tendon/";

/** As `parseGitRequest`, for what git-lfs asks: its API at the repository, and what the proxy has sealed of its answers. */
export function parseLfsRequest(
  method: string,
  target: string,
  { host, port }: { readonly host: string; readonly port: number },
): LfsRequest | undefined {
  const [, authority = "", path = ""] = /^\/git\/([^/]+)(\/.*)$/.exec(target) ?? [];
  if (target.length > LONGEST_ACTION || !isAuthority(authority, host, port)) return undefined;
  const [, repository = "", rest = ""] = LFS.exec(path) ?? [];
  if (rest === "" || !repository.slice(1).split("/").every(isPlainPart)) return undefined;
  const origin = originOf(host, port);
  const of = (kind: LfsRequest["kind"], url = origin + path) => ({
    repositoryUrl: origin + repository,
    url,
    kind,
  });
  if (rest.startsWith("/tendon/")) return of("action", rest.slice("/tendon/".length));
  if (rest === "/objects/batch") return method === "POST" ? of("batch") : undefined;
  const isList = /^\/locks(\?|$)/.test(rest);
  return method === "POST" || (method === "GET" && isList) ? of("locks") : undefined;
}

export function originOf(host: string, port: number): string {
  const name = host.includes(":") ? `[${host}]` : host;
  return port === 443 ? `https://${name}` : `https://${name}:${port}`;
}

function isAuthority(authority: string, host: string, port: number): boolean {
  const wanted = `https://${authority}`;
  if (authority.includes("@") || !URL.canParse(wanted)) return false;
  return new URL(wanted).origin === new URL(originOf(host, port)).origin;
}

/** Escapes of `\w . ~ + @ ! $ & ' ( ) , = : -`. */
const NEEDLESS = /%(?:2[1467-9b-e]|3[0-9ad]|4[0-9a-f]|5[0-9af]|6[1-9a-f]|7[0-9ae])/i;

/** No part may mean another path to whoever reads it next. */
function isPlainPart(part: string): boolean {
  // What needs no escape has none, or one name had two spellings, and the other one another credential.
  if (!/^(?:[\w.~+@!$&'(),=:-]|%[0-9A-Fa-f]{2})+$/.test(part) || NEEDLESS.test(part)) return false;
  try {
    const name = decodeURIComponent(part);
    // Behind a semicolon there are parameters for some servers, which drop them: `..;` would be `..` there.
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    return name !== "." && name !== ".." && !/[/\\%?#;\x00-\x1f\x7f]/.test(name);
  } catch {
    return false;
  }
}
