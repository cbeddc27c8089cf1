/**
 * Asks for a repository as git does, through the hand's way to the proxy and in its session's name, before anything is cloned:
 * the answer says what exactly is wrong, and nothing that was kept of the repository is given out without it.
 */
import http from "node:http";
import type { Duplex } from "node:stream";
import { TendonError } from "../../kit/errors.ts";
import { hostText, parseTarget } from "../../kit/network/host-name.ts";
import { type RepositoryFailure, RepositoryProblem } from "./outcome.ts";

export interface RepositoryAccess {
  /** Names whose rights the host has looked at, a credential's or nobody's. Empty when the proxy does not say. */
  readonly rights: string;
}

/** Opens a connection of the hand to the proxy for git at this host. */
export type ConnectForGit = (to: { host: string; port: number }, signal: AbortSignal) => Promise<Duplex>;

const HTTPS_PORT = 443;
const MAX_REDIRECTS = 3;
const MAX_TEXT = 2_000;
const FAILURES: Readonly<Record<string, RepositoryFailure>> = {
  authentication_failed: "authentication",
  forbidden: "forbidden",
  redirect_refused: "forbidden",
  not_found: "not_found",
};

/** Throws RepositoryProblem. */
export async function askForAccess(
  url: string,
  connect: ConnectForGit,
  signal: AbortSignal,
): Promise<RepositoryAccess> {
  const { host: authority, pathname } = new URL(url);
  let path = `/git/${authority}${pathname.replace(/\/+$/, "")}/info/refs?service=git-upload-pack`;
  for (let redirects = 0; ; redirects++) {
    const response = await ask(authority, path, connect, signal);
    try {
      const { statusCode = 0, headers } = response;
      if (statusCode === 200) return { rights: textOf(headers["tendon-git-access"]) };
      if (statusCode !== 302 || redirects === MAX_REDIRECTS) throw await problemOf(response);
      path = textOf(headers.location);
      if (!path.startsWith(`/git/${authority}/`))
        throw new RepositoryProblem("clone", "proxy", "a bad redirect");
    } finally {
      response.destroy();
    }
  }
}

async function ask(authority: string, path: string, connect: ConnectForGit, signal: AbortSignal) {
  const target = parseTarget(authority, HTTPS_PORT);
  if (target === undefined) throw new RepositoryProblem("clone", "hand_agent", `"${authority}" is no host`);
  try {
    const stream = await connect({ host: hostText(target.host), port: target.port }, signal);
    return await new Promise<http.IncomingMessage>((resolve, reject) => {
      const request = http.request({
        path,
        headers: { host: authority, "git-protocol": "version=2", "user-agent": "git/tendon" },
        createConnection: () => stream,
        signal,
      });
      request.once("response", resolve);
      request.once("error", reject);
      request.end();
    });
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    if (error instanceof TendonError)
      throw new RepositoryProblem("clone", error.metadata.part ?? "tunnel", error.message, true);
    throw new RepositoryProblem(
      "clone",
      "tunnel",
      `the way to the proxy broke off: ${(error as Error).message}`,
      true,
    );
  }
}

async function problemOf(response: http.IncomingMessage): Promise<RepositoryProblem> {
  const { statusCode = 0, headers } = response;
  let text = "";
  for await (const chunk of response.setEncoding("utf8")) {
    text += chunk as string;
    if (text.length > MAX_TEXT) break;
  }
  const failure = FAILURES[textOf(headers["tendon-git-error"])] ?? "clone";
  const message = text.replace(/^Tendon: /, "") || `the proxy answered with status ${statusCode}`;
  const part = textOf(headers["tendon-git-part"]) || "proxy";
  return new RepositoryProblem(failure, part, message, statusCode === 502 || statusCode === 503);
}

function textOf(value: string | string[] | undefined): string {
  return typeof value === "string" ? value : "";
}
