/**
 * Where a credential belongs, in one spelling: the server finds it by this, and the proxy compares with this what stands in
 * the sealed text. Equal means equal: another path, port or subdomain is another destination, and gets nothing.
 */
import type { CredentialUse } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { normaliseHandAgentUrl, parseHandAgentUrl } from "../network/hand-agent-url.ts";

const SERVER_SCHEMES = new Set(["http:", "https:"]);
const MAX_GIT_PARTS = 16;

/**
 * Scheme and host in lower case, no default port, no slash at the end. Undefined for what is no such URL, or holds a user, a
 * password or a fragment; and for plain HTTP behind a hand agent, where a secret would be read on the way.
 */
export function normaliseServerUrl(text: string): string | undefined {
  const behindHandAgent = parseHandAgentUrl(text);
  if (behindHandAgent !== undefined) {
    return behindHandAgent.isSecure ? normaliseHandAgentUrl(text) : undefined;
  }
  const url = usableUrl(text);
  if (url === undefined || !SERVER_SCHEMES.has(url.protocol)) return undefined;
  return `${url.protocol}//${url.host.toLowerCase()}${url.pathname.replace(/\/+$/, "")}${url.search}`;
}

/** The same for git, without `.git` at the end; https only, and without a query. */
export function normaliseGitUrl(text: string): string | undefined {
  const url = usableUrl(text);
  if (url?.protocol !== "https:" || url.search !== "") return undefined;
  const path = url.pathname.replace(/\/+$/, "").replace(/\.git$/, "");
  return `https://${url.host}${path.replace(/\/+$/, "")}`;
}

function usableUrl(text: string): URL | undefined {
  if (/[^!-~]/.test(text) || !URL.canParse(text)) return undefined;
  const url = new URL(text);
  const hasMore = url.username !== "" || url.password !== "" || url.hash !== "" || text.includes("#");
  return url.hostname === "" || hasMore ? undefined : url;
}

export const mcpDestination = (normalisedUrl: string) => `mcp ${normalisedUrl}`;
export const variableDestination = (name: string) => `variable ${name}`;
const gitDestination = (normalisedUrl: string) => `git ${normalisedUrl}`;

/** What a credential is found by; one live credential of a vault has it. Undefined for a use whose URL is none. */
export function destinationOf({ kind }: CredentialUse): string | undefined {
  switch (kind.case) {
    case "staticBearer":
    case "header":
    case "oauth": {
      const url = normaliseServerUrl(kind.value.serverUrl);
      return url === undefined ? undefined : mcpDestination(url);
    }
    case "git": {
      const url = normaliseGitUrl(kind.value.url);
      return url === undefined ? undefined : gitDestination(url);
    }
    case "environmentVariable":
      return variableDestination(kind.value.name);
    case undefined:
      return undefined;
  }
}

/** What a repository may be reached with, the longest first. Undefined for what is no repository's URL. */
export function gitDestinations(repositoryUrl: string): string[] | undefined {
  const url = normaliseGitUrl(repositoryUrl);
  if (url === undefined) return undefined;
  const { origin, pathname } = new URL(url);
  const parts = pathname.split("/").filter((part) => part !== "");
  if (parts.length === 0 || parts.length > MAX_GIT_PARTS) return undefined;
  const prefixes = parts.map((_, index) => `${origin}/${parts.slice(0, index + 1).join("/")}`);
  return [...prefixes.reverse(), origin].map(gitDestination);
}

/**
 * Host, with its port where it is none of the usual, as the audit log names a destination; behind a hand agent
 * `<pool>/<host>`. Empty for what is no URL.
 */
export function hostOf(url: string): string {
  const behindHandAgent = parseHandAgentUrl(url);
  if (behindHandAgent !== undefined) return `${behindHandAgent.pool}/${new URL(behindHandAgent.url).host}`;
  return URL.canParse(url) ? new URL(url).host : "";
}
