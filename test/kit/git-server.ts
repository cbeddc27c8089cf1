/** A git host: git's own http-backend behind TLS, with Basic authentication for paths below `/private/`. */
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import type { IncomingMessage, ServerResponse } from "node:http";
import { createServer } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { type LfsHost, startLfsHost } from "./lfs-host.ts";
import { createCertificates } from "./test-certificates.ts";

const run = promisify(execFile);

export interface GitServer {
  readonly port: number;
  readonly caFile: string;
  /** User and password that private repositories want, `user:token`. */
  login: string;
  /** Bytes of packs and advertisements that it sent. */
  sentBytes: number;
  readonly lfs: LfsHost;
  /** What came, newest last. */
  readonly seen: { method: string; path: string; authorization: string | undefined }[];
  /** Makes a bare repository with one commit on `main`; the path is below `/`. */
  addRepository(path: string): Promise<void>;
  /** Runs git in a repository and gives what it printed. */
  git(path: string, ...args: string[]): Promise<string>;
  stop(): Promise<void>;
}

const PATH = process.env.PATH ?? "";
const AUTHOR = ["-c", "user.name=Someone", "-c", "user.email=someone@example.com"];

export async function startGitServer(): Promise<GitServer> {
  const certificates = await createCertificates();
  const { certFile, keyFile } = await certificates.issue("git");
  const root = await mkdtemp(join(tmpdir(), "tendon-git-"));
  const env = { PATH, HOME: root, GIT_CONFIG_NOSYSTEM: "1" };
  const seen: GitServer["seen"] = [];
  const tls = { cert: readFileSync(certFile), key: readFileSync(keyFile) };
  const lfs = await startLfsHost(tls);
  const server = createServer(tls, (request, response) => {
    const { method = "", url: path = "", headers } = request;
    seen.push({ method, path, authorization: headers.authorization });
    const basic = `Basic ${Buffer.from(host.login).toString("base64")}`;
    if (path.startsWith("/moved/")) {
      return void response.writeHead(302, { location: path.replace("/moved/", "/public/") }).end();
    }
    if (path.startsWith("/away/")) {
      return void response.writeHead(302, { location: `https://other.example${path}` }).end();
    }
    if (path.startsWith("/private/") && headers.authorization !== basic) {
      response.writeHead(401, { "www-authenticate": 'Basic realm="git"' }).end();
      return;
    }
    if (path.startsWith("/switched/"))
      return void request.socket.write("HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    if (path.startsWith("/silent/")) return;
    if (path.startsWith("/repeating/")) {
      const text = JSON.stringify({ locks: [], said: headers.authorization });
      return void response.writeHead(200, { "content-type": "application/json" }).end(text);
    }
    if (path.startsWith("/forbidden/")) return void response.writeHead(403).end();
    if (lfs.serve(request, response)) return;
    backend(root, env, request, response, (bytes) => {
      host.sentBytes += bytes;
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const host: GitServer = {
    port: (server.address() as AddressInfo).port,
    caFile: certificates.caFile,
    login: "bot:token-of-the-host",
    sentBytes: 0,
    lfs,
    seen,
    async addRepository(path) {
      const bare = join(root, path);
      await run("git", ["init", "-q", "--bare", "-b", "main", bare], { env });
      await run("git", ["-C", bare, "config", "http.receivepack", "true"], { env });
      const work = join(root, "work");
      await run("git", ["clone", "-q", bare, work], { env });
      await run("git", ["-C", work, ...AUTHOR, "commit", "-q", "--allow-empty", "-m", "first"], { env });
      await run("git", ["-C", work, "push", "-q", "origin", "HEAD:main"], { env });
      await rm(work, { recursive: true });
    },
    async git(path, ...args) {
      return (await run("git", ["-C", join(root, path), ...args], { env })).stdout.trim();
    },
    async stop() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      await lfs.stop();
      await certificates.remove();
      await rm(root, { recursive: true, force: true });
    },
  };
  return host;
}

/** One request by CGI. */
function backend(
  root: string,
  env: Record<string, string>,
  request: IncomingMessage,
  response: ServerResponse,
  onSent: (bytes: number) => void,
): void {
  const [path = "", query = ""] = (request.url ?? "").split("?");
  const { headers } = request;
  const child = spawn("git", ["http-backend"], {
    stdio: ["pipe", "pipe", "ignore"],
    env: {
      ...env,
      GIT_PROJECT_ROOT: root,
      GIT_HTTP_EXPORT_ALL: "1",
      PATH_INFO: path,
      QUERY_STRING: query,
      REQUEST_METHOD: request.method ?? "",
      CONTENT_TYPE: headers["content-type"] ?? "",
      ...(headers["content-length"] && { CONTENT_LENGTH: headers["content-length"] }),
      ...(headers["content-encoding"] && { HTTP_CONTENT_ENCODING: String(headers["content-encoding"]) }),
      ...(headers["git-protocol"] && { GIT_PROTOCOL: String(headers["git-protocol"]) }),
      REMOTE_USER: "bot",
    },
  });
  child.stdin.on("error", () => {});
  request.pipe(child.stdin);
  let head = Buffer.alloc(0);
  child.stdout.on("data", function read(chunk: Buffer) {
    head = Buffer.concat([head, chunk]);
    const end = head.indexOf("\r\n\r\n");
    if (end < 0) return;
    child.stdout.off("data", read).pause();
    const fields = head
      .toString("latin1", 0, end)
      .split("\r\n")
      .map((line) => line.split(": ") as [string, string]);
    const status = fields.find(([name]) => name === "Status")?.[1] ?? "200";
    response.writeHead(
      Number.parseInt(status, 10),
      Object.fromEntries(fields.filter(([name]) => name !== "Status")),
    );
    response.write(head.subarray(end + 4));
    onSent(head.length - end - 4);
    child.stdout.on("data", (bytes: Buffer) => onSent(bytes.length));
    child.stdout.pipe(response);
  });
}
