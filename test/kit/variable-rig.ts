/**
 * The way of a variable, whole: hands of a hand agent's built program, server, proxy with its own handler of egress, and a host
 * with TLS and an authority of the test's own, which keeps what it was sent and repeats it in several ways.
 */
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import type { IncomingMessage, ServerResponse } from "node:http";
import { createServer as createTlsServer, type Server } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { brotliCompressSync, gzipSync } from "node:zlib";
import { createCertificates, type TestCertificates } from "./test-certificates.ts";
import { startTunnelRig, type TunnelHand, type TunnelRig } from "./tunnel-rig.ts";
import type { VaultRig } from "./vault-rig.ts";

/** Has what URLs, JSON, HTML and base64 each write in a way of their own. */
export const VALUE = "sk-canary/0123456789+ab&cd==";

export interface SeenRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: IncomingMessage["headers"];
  readonly rawHeaders: readonly string[];
  readonly body: Buffer;
}

export interface RepeatingHost {
  readonly port: number;
  /** What came, newest last. */
  readonly seen: SeenRequest[];
  readonly certificates: TestCertificates;
  /** Lets the request for `/held` be answered that waits now; undefined while none does. */
  readonly held: (() => void) | undefined;
  /** Whether its sender has gone before it was answered. */
  readonly heldClosed: boolean;
  close(): Promise<void>;
}

/** Loopback addresses beside the one that programs in a hand never ask a proxy for. */
export const HOST = "127.0.0.2";
export const PRIVATE_HOST = "127.0.0.3";
export const NAMES = ["api.example", "deep.wild.example", "other.example"] as const;

/**
 * A program for hands with Node: connects by the relay to `host:port`, by TLS with `servername` unless that is "none", sends
 * each of the texts as bytes, in which `$NAME` is a variable's placeholder, and prints a line for each: what came back until
 * the host or the proxy was silent for a moment, or ended.
 */
const FETCH = `
import { connect } from "node:net";
import { connect as secure } from "node:tls";
const [target, servername, ...texts] = process.argv.slice(2);
const filled = (text) => text.replace(/\\$([A-Z_]+)/g, (_, name) => process.env[name] ?? "");
async function once(text) {
  const socket = connect({ port: 7480, host: "127.0.0.1" });
  socket.write("CONNECT " + target + " HTTP/1.1\\r\\n\\r\\n");
  let head = "";
  while (!head.endsWith("\\r\\n\\r\\n")) {
    await new Promise((resolve) => socket.once("readable", resolve));
    for (let byte; !head.endsWith("\\r\\n\\r\\n") && (byte = socket.read(1)) !== null; ) head += byte.toString("latin1");
  }
  if (!head.includes(" 200 ")) return head.split("\\r\\n").filter((line) => /^HTTP|x-tendon/i.test(line)).join(" ");
  const wire = servername === "none" ? socket : secure({ socket, servername });
  return new Promise((resolve) => {
    let said = "";
    wire.on("data", (bytes) => (said += bytes));
    wire.on("error", (error) => resolve("error " + error.code + " " + said));
    wire.on("close", () => resolve(said));
    wire.write(filled(text));
  });
}
for (const text of texts) console.log(JSON.stringify(await once(text)));
`;

export interface VariableRig {
  readonly tunnels: TunnelRig;
  readonly host: RepeatingHost;
  /** With API_KEY, for api.example, all below wild.example, HOST and PRIVATE_HOST. */
  readonly vault: string;
  readonly audit: VaultRig["audit"];
  /** All that has passed between the agent and its server. */
  readonly throughAgent: Buffer[];
  urlOf(host: string): string;
  /** With `fetch.mjs` in its work directory; see FETCH. */
  newHand(options?: Parameters<TunnelRig["newHand"]>[0]): Promise<TunnelHand>;
  stop(): Promise<void>;
}

/** `agentEnv` and `proxy`: settings beside those that this needs. */
export async function startVariableRig({
  agentEnv = {},
  proxy = {},
}: {
  agentEnv?: Record<string, string>;
  proxy?: { deny?: string[] };
} = {}): Promise<VariableRig> {
  const host = await startRepeatingHost();
  const names = await hostsFile();
  const throughAgent: Buffer[] = [];
  const tunnels = await startTunnelRig(agentEnv, {
    onAgentBytes: (bytes) => throughAgent.push(bytes),
    proxyOptions: {
      ...proxy,
      handlers: {},
      hostsFile: names.path,
      upstreamCaFile: host.certificates.caFile,
    },
  });
  const { home } = tunnels.vault;
  const vault = await home.newVault();
  const use = {
    name: "API_KEY",
    allowedHosts: ["api.example", "*.wild.example", "wrong.example", HOST, PRIVATE_HOST],
    inHeaders: true,
    inBody: true,
  };
  await home.addCredential(vault, { kind: { case: "environmentVariable", value: use } }, VALUE);
  return {
    tunnels,
    host,
    vault,
    audit: tunnels.vault.audit,
    throughAgent,
    urlOf: (name) => `https://${name}:${host.port}`,
    async newHand(options = {}) {
      const hand = await tunnels.newHand({ vaultIds: [vault], ...options });
      await hand.bash(`cat >fetch.mjs <<'END_OF_PROGRAM'\n${FETCH}\nEND_OF_PROGRAM`);
      return hand;
    },
    async stop() {
      await tunnels.stop();
      await host.close();
      await names.remove();
    },
  };
}

/** Listens at every address of loopback; its certificate is for all NAMES, HOST and PRIVATE_HOST, but not for `wrong.example`. */
export async function startRepeatingHost(): Promise<RepeatingHost> {
  const certificates = await createCertificates();
  const { certFile, keyFile } = await issueFor(certificates, [
    ...NAMES.map((name) => `DNS:${name}`),
    ...[HOST, PRIVATE_HOST].map((address) => `IP:${address}`),
  ]);
  const seen: SeenRequest[] = [];
  const waiting: Waiting = { answer: undefined, isClosed: false };
  const server: Server = createTlsServer(
    { cert: readFileSync(certFile), key: readFileSync(keyFile), ALPNProtocols: ["http/1.1"] },
    (request, response) => void repeat(request, response, seen, waiting),
  );
  server.listen(0, "0.0.0.0");
  await new Promise((resolve) => server.once("listening", resolve));
  return {
    port: (server.address() as AddressInfo).port,
    seen,
    certificates,
    get held() {
      return waiting.answer;
    },
    get heldClosed() {
      return waiting.isClosed;
    },
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      await certificates.remove();
    },
  };
}

interface Waiting {
  answer: (() => void) | undefined;
  isClosed: boolean;
}

async function issueFor(certificates: TestCertificates, names: readonly string[]) {
  const { certFile, keyFile } = await certificates.issue("host");
  const at = (file: string) => join(certificates.directory, file);
  await writeFile(at("host.ext"), `subjectAltName=${names.join(",")}\n`);
  const run = promisify(execFile);
  await run("openssl", [
    ...[
      "x509",
      "-req",
      "-in",
      at("host.csr"),
      "-CA",
      at("ca.crt"),
      "-CAkey",
      at("ca.key"),
      "-CAcreateserial",
    ],
    ...["-out", certFile, "-days", "2", "-extfile", at("host.ext")],
  ]);
  return { certFile, keyFile };
}

async function repeat(
  request: IncomingMessage,
  response: ServerResponse,
  seen: SeenRequest[],
  waiting: Waiting,
): Promise<void> {
  const parts: Buffer[] = [];
  request.on("error", () => {});
  response.on("error", () => {});
  try {
    for await (const part of request) parts.push(part as Buffer);
  } catch {
    return; // the other side has given up
  }
  const body = Buffer.concat(parts);
  const { method = "", url = "", headers, rawHeaders } = request;
  seen.push({ method, url, headers, rawHeaders, body });
  const said = `${headers["x-key"] ?? ""} ${headers.authorization ?? ""} ${body.subarray(0, 2_000).toString()}`;
  const { pathname } = new URL(url, "https://host");
  switch (pathname) {
    case "/gzip":
      return void response
        .writeHead(200, { "content-encoding": "gzip", "content-type": "text/plain" })
        .end(gzipSync(said));
    case "/br":
      return void response.writeHead(200, { "content-encoding": "br" }).end(brotliCompressSync(said));
    case "/odd":
      return void response.writeHead(200, { "content-encoding": "lzma" }).end(said);
    case "/header":
      return void response
        .writeHead(200, {
          "x-said": said,
          "set-cookie": ["a=1", `b=${headers["x-key"] ?? ""}`],
          // What of a value a name can hold.
          [`X-Of-${Buffer.from(String(headers["x-key"] ?? "")).toString("base64url")}`]: "yes",
        })
        .end("ok");
    case "/pieces":
      return inPieces(response, `${said}\n`);
    case "/redirect":
      return void response.writeHead(302, { location: "https://evil.example/" }).end();
    case "/large": {
      response.writeHead(200, { "content-type": "application/octet-stream" });
      for (let block = 0; block < 16; block++) {
        if (!response.write(Buffer.alloc(256 * 1024, block)))
          await new Promise((resolve) => response.once("drain", resolve));
      }
      return void response.end();
    }
    case "/held":
      waiting.isClosed = false;
      response.once("close", () => {
        waiting.answer = undefined;
        if (!response.writableFinished) waiting.isClosed = true;
      });
      waiting.answer = () => void response.end(said);
      return;
    case "/switched":
      return void request.socket.write("HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    case "/coded": {
      const zipped = gzipSync(said);
      request.socket.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n");
      request.socket.write(`${zipped.length.toString(16)}\r\n`);
      request.socket.write(zipped);
      return void request.socket.write("\r\n0\r\n\r\n");
    }
    case "/open":
      response.writeHead(200, { "content-type": "text/event-stream" });
      return void response.write("data: first\n\n");
    default:
      return void response
        .writeHead(200, { "content-type": "text/plain", "content-length": Buffer.byteLength(said) })
        .end(said);
  }
}

/** One byte at a time, each in a TLS record of its own: a value never comes in one piece. */
async function inPieces(response: ServerResponse, text: string): Promise<void> {
  response.writeHead(200, { "content-type": "text/event-stream" });
  for (const byte of Buffer.from(text))
    await new Promise((resolve) => response.write(Buffer.from([byte]), resolve));
  response.end();
}

/** A file of names for the proxy. */
async function hostsFile(): Promise<{ path: string; remove: () => Promise<void> }> {
  const folder = await mkdtemp(join(tmpdir(), "tendon-hosts-"));
  const path = join(folder, "hosts");
  await writeFile(path, `${HOST} ${NAMES.join(" ")} wrong.example\n`);
  return { path, remove: () => rm(folder, { recursive: true, force: true }) };
}
