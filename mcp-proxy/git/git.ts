/**
 * Git of sandboxes: `/git/<host>/<path>` in plain HTTP from the relay in the sandbox, HTTPS to the host from here, with the
 * session's credential. Bytes stream both ways; what is held is the beginning of a push, where its credential has branch
 * rules. A sandbox sees what git servers say in git's own formats, and of every other answer only a text of the proxy's own.
 */
import { createHash } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { request as httpsRequest } from "node:https";
import { pipeline } from "node:stream";
import { isTendonError, messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import { answerTo } from "../../kit/network/answer.ts";
import { CredentialPurpose } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import type { Credentials, Grant } from "../credentials/credentials.ts";
import { CredentialRefusal } from "../credentials/refusal.ts";
import type { Outbound } from "../outbound/outbound.ts";
import { OutboundRefusal } from "../outbound/refusal.ts";
import type { ConnectionHandler, SandboxConnection } from "../tunnels/sandbox-connection.ts";
import { type GitRequest, originOf, parseGitRequest, parseLfsRequest } from "./git-path.ts";
import { LFS_TYPE, type LfsDeps, serveLfs } from "./lfs.ts";
import { readPushCommands, refusedPush, UnreadablePush } from "./push-commands.ts";
import { givenUrl, mayPush, ONLY_OWN, rulesOfSession } from "./push-rules.ts";
import { GitRefusal, refusalOfStatus } from "./refusal.ts";

interface ExchangeDeps extends LfsDeps {
  readonly credentials: Pick<Credentials, "grant">;
  readonly log: Logger;
}

export interface GitDeps extends Omit<ExchangeDeps, "https"> {
  readonly outbound: Pick<Outbound, "ownHttps">;
}

/** Of the client: what git's protocol needs. Nothing by which it could sign in. */
const TO_HOST = [
  "accept",
  "accept-encoding",
  "accept-language",
  "content-type",
  "content-encoding",
  "content-length",
  "git-protocol",
  "user-agent",
];
const TO_SANDBOX = ["content-type", "content-encoding", "content-length", "cache-control"];
/** A sealed transfer of LFS stands in its URL. */
const MAX_HEADER_BYTES = 32 * 1024;
const NO_TIMEOUTS = { requestTimeout: 0, headersTimeout: 0 } as const;
/** Of one connection, at a time: requests, and connections to hosts. Git waits for each answer before it asks for more. */
const MAX_REQUESTS = 16;
const MAX_SOCKETS = 4;
const REDIRECTS = new Set([301, 302, 303, 307, 308]);

export function createGit(deps: GitDeps): ConnectionHandler {
  return (connection) => {
    // One for each connection, whose name every request of it must bear. A large push takes as long as it takes: what
    // stands still is ended by the relay.
    const https = deps.outbound.ownHttps(MAX_SOCKETS);
    connection.stream.once("close", () => https.destroy());
    let running = 0;
    const server: Server = createServer(
      { ...NO_TIMEOUTS, maxHeaderSize: MAX_HEADER_BYTES },
      (request, response) => {
        if (running >= MAX_REQUESTS) return void connection.stream.destroy();
        running += 1;
        response.once("close", () => {
          running -= 1;
        });
        const exchange = new GitExchange({ ...deps, https }, connection, request, response);
        exchange.run().catch((error: unknown) => {
          deps.log.warn({ sessionId: connection.sessionId, error: messageOf(error) }, "a git request failed");
          response.destroy();
        });
      },
    );
    server.on("clientError", (_error, socket) => socket.destroy());
    server.emit("connection", connection.stream);
  };
}

class GitExchange {
  private readonly deps: ExchangeDeps;
  private readonly connection: SandboxConnection;
  private readonly request: IncomingMessage;
  private readonly response: ServerResponse;

  constructor(
    deps: ExchangeDeps,
    connection: SandboxConnection,
    request: IncomingMessage,
    response: ServerResponse,
  ) {
    this.deps = deps;
    this.connection = connection;
    this.request = request;
    this.response = response;
  }

  async run(): Promise<void> {
    try {
      const { method = "", url = "" } = this.request;
      const lfs = parseLfsRequest(method, url, this.connection);
      if (lfs !== undefined) {
        const { connection, request, response } = this;
        const grant = await this.grant(lfs.repositoryUrl);
        return await serveLfs(this.deps, { asked: lfs, connection, request, response, grant });
      }
      const asked = parseGitRequest(method, url, this.connection);
      if (asked === undefined) throw new GitRefusal("bad_request", "this is no request of git for this host");
      const grant = await this.grant(asked.repositoryUrl);
      if (await this.refusesPush(asked, grant)) return;
      await this.passOn(asked, grant);
    } catch (error) {
      this.refuse(asRefusal(error, this.connection.host));
    }
  }

  private grant(repositoryUrl: string): Promise<Grant | undefined> {
    const { sessionId, workspaceId, epoch, repositories } = this.connection;
    const purpose = CredentialPurpose.GIT;
    const destination = givenUrl(repositoryUrl, repositories);
    return this.deps.credentials.grant({
      sessionId,
      workspaceId,
      epoch: BigInt(epoch),
      destination,
      purpose,
    });
  }

  /** Whether the push was answered here, since its credential's rules forbid a part of it: then all of it is refused. */
  private async refusesPush(asked: GitRequest, grant: Grant | undefined): Promise<boolean> {
    if (asked.service !== "git-receive-pack") return false;
    const ofSession = rulesOfSession(asked.repositoryUrl, this.connection.repositories);
    if (ofSession === undefined) {
      throw new GitRefusal("forbidden", ONLY_OWN);
    }
    if (asked.isAdvertisement) return false;
    const rules = [grant?.pushBranches ?? [], ...ofSession].filter((patterns) => patterns.length > 0);
    if (rules.length === 0) return false;
    if ((this.request.headers["content-encoding"] ?? "identity") !== "identity") {
      throw new UnreadablePush("it is compressed");
    }
    const push = await readPushCommands(this.request);
    const forbidden = new Set(push.refs.filter((ref) => !rules.every((patterns) => mayPush(ref, patterns))));
    // By these hosts change more than the branch: they merge it into another, for one.
    const hasOptions = push.capabilities.has("push-options");
    if (forbidden.size === 0 && !hasOptions) return false;
    grant?.used("push_refused");
    const report = refusedPush(push, (ref) => {
      if (forbidden.has(ref)) return "the session may not push here";
      return hasOptions ? "the session may not push with options" : "refused with the rest of the push";
    });
    if (report === undefined) {
      throw new GitRefusal("forbidden", "the session may not push to one of these refs");
    }
    // Git reads no answer before it has sent all.
    this.request.resume();
    this.request.once("end", () => {
      this.response.writeHead(200, {
        "content-type": "application/x-git-receive-pack-result",
        "cache-control": "no-cache",
      });
      this.response.end(report);
    });
    return true;
  }

  private async passOn(asked: GitRequest, grant: Grant | undefined): Promise<void> {
    const answer = await this.send(asked, grant);
    const status = answer.statusCode ?? 0;
    grant?.used(String(status));
    if (status === 200 && answer.headers["content-type"] === contentType(asked)) {
      const rights = { "tendon-git-access": rightsOf(grant) };
      this.response.writeHead(200, { ...only(answer.headers, TO_SANDBOX), ...rights });
      pipeline(answer, this.response, () => {});
      return;
    }
    answer.destroy();
    if (asked.isAdvertisement && REDIRECTS.has(status)) return this.redirect(asked, answer.headers.location);
    throw refusalOfStatus(status, asked.repositoryUrl, grant !== undefined);
  }

  private send(asked: GitRequest, grant: Grant | undefined): Promise<IncomingMessage> {
    const { request, response } = this;
    const outgoing = httpsRequest(asked.url, {
      agent: this.deps.https,
      method: request.method,
      headers: { ...only(request.headers, TO_HOST), ...grant?.headers },
    });
    const answer = answerTo(outgoing);
    response.once("close", () => outgoing.destroy());
    if (asked.isAdvertisement) outgoing.end();
    // An early answer is passed on; its sender is not to blame when the rest has nowhere to go.
    else request.pipe(outgoing);
    return answer;
  }

  /** Within the host git is told the new path, and asks for it here: another path may have another credential, or none. */
  private redirect(asked: GitRequest, location = ""): void {
    const { host, port } = this.connection;
    const to = URL.canParse(location, asked.url) ? new URL(location, asked.url) : undefined;
    if (to?.origin !== new URL(originOf(host, port)).origin) {
      throw new GitRefusal(
        "redirect_refused",
        `${host} redirects to ${to?.host ?? "what is no URL"}, which is not followed`,
      );
    }
    const authority = this.request.url?.split("/")[2] ?? "";
    this.response.writeHead(302, { location: `/git/${authority}${to.pathname}${to.search}` }).end();
  }

  private refuse(refusal: GitRefusal): void {
    const { request, response, connection } = this;
    if (response.headersSent || response.destroyed) return void response.destroy();
    this.deps.log.info(
      { sessionId: connection.sessionId, host: connection.host, reason: refusal.reason },
      "a git request was refused",
    );
    const said = `Tendon: ${refusal.message}`;
    // Each program prints what comes in its own format.
    const isLfs = request.url?.includes("/info/lfs/") === true;
    const text = isLfs ? JSON.stringify({ message: said }) : `${said}\n`;
    response.writeHead(refusal.status, {
      "content-type": isLfs ? LFS_TYPE : "text/plain; charset=utf-8",
      "content-length": Buffer.byteLength(text),
      "tendon-git-error": refusal.reason,
      "tendon-git-part": refusal.part,
      // What of the request was not read is not read any more.
      connection: "close",
    });
    response.end(text);
    request.unpipe();
    request.resume();
  }
}

/** Names the credential to whoever keeps clones, and tells nothing of it. */
function rightsOf(grant: Grant | undefined): string {
  if (grant === undefined) return "none";
  return createHash("sha256").update(grant.credentialId).digest("hex").slice(0, 32);
}

function contentType({ service, isAdvertisement }: GitRequest): string {
  return `application/x-${service}-${isAdvertisement ? "advertisement" : "result"}`;
}

function only(headers: IncomingMessage["headers"], names: readonly string[]): Record<string, string> {
  const found = names.flatMap((name) => {
    const value = headers[name];
    return typeof value === "string" ? [[name, value] as const] : [];
  });
  return Object.fromEntries(found);
}

function asRefusal(error: unknown, host: string): GitRefusal {
  if (error instanceof GitRefusal) return error;
  if (error instanceof UnreadablePush) {
    const why = `the session's credential has branch rules, and this push cannot be checked: ${error.message}`;
    return new GitRefusal("forbidden", why);
  }
  if (error instanceof CredentialRefusal) {
    return new GitRefusal(
      "authentication_failed",
      `the credential for ${host} is not used: ${error.message}`,
      "proxy",
    );
  }
  if (error instanceof OutboundRefusal) {
    return error.isDenial
      ? new GitRefusal("forbidden", error.message, "proxy")
      : new GitRefusal("unreachable", error.message);
  }
  if (isTendonError(error))
    return new GitRefusal("unavailable", `no credential can be had: ${error.message}`, "proxy");
  return new GitRefusal("unreachable", `${host} broke the connection`);
}
