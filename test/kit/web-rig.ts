/**
 * Sessions whose agent has tools of the web, a proxy that runs them, and the web: names with public addresses, behind a
 * corporate proxy that leads all of them to one server of this machine.
 */
import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from "node:http";
import { type AddressInfo, connect } from "node:net";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { systemClock } from "../../kit/clock.ts";
import { newId } from "../../kit/ids.ts";
import { loadOrCreateKeyFile } from "../../kit/sign/key-file.ts";
import { SESSION_TOKEN_AUDIENCE, signToken } from "../../kit/sign/token.ts";
import type { ToolSchema, WebToolsetSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { newSealingKeys, startProxy, type TestProxy } from "./proxy-rig.ts";
import { startVaultRig, takeSession, type VaultRig } from "./vault-rig.ts";

/** By host and path, `pages.example.com/a`; what is not there is a 404. */
export type Pages = Map<string, RequestListener>;

export interface WebSide {
  readonly pages: Pages;
  /** Host and path of each request. */
  readonly seen: string[];
  /** What the corporate proxy was asked for, host:port. */
  readonly connected: string[];
  readonly proxyUrl: string;
  /** For names that this machine is to know. */
  readonly hostsFile: string;
  stop(): Promise<void>;
}

/** `directory`: where the file with the names goes. */
export async function startWebSide(directory: string): Promise<WebSide> {
  const pages: Pages = new Map();
  const seen: string[] = [];
  const connected: string[] = [];
  const web = createServer((request, response) => {
    const place = `${request.headers.host}${request.url}`;
    seen.push(place);
    const page = pages.get(place) ?? notFound;
    page(request, response);
  });
  const port = await listening(web);
  const corporate = createServer();
  corporate.on("connect", (request, socket) => {
    connected.push(request.url ?? "");
    const through = connect(port, "127.0.0.1", () => {
      socket.write("HTTP/1.1 200 OK\r\n\r\n");
      through.pipe(socket).pipe(through);
    });
    for (const [one, other] of [
      [through, socket],
      [socket, through],
    ] as const)
      one.on("error", () => {}).once("close", () => other.destroy());
  });
  const proxyUrl = `http://127.0.0.1:${await listening(corporate)}`;
  const hostsFile = `${directory}/web-hosts`;
  await writeFile(hostsFile, HOSTS);
  return {
    ...{ pages, seen, connected, proxyUrl, hostsFile },
    async stop() {
      for (const server of [corporate, web]) {
        server.closeAllConnections();
        await new Promise((resolve) => server.close(resolve));
      }
    },
  };
}

const HOSTS = `93.184.216.34 pages.example.com docs.pages.example.com other.example.org denied.example.org
10.0.0.7 inside.example.com
127.0.0.1 loop.example.com
::ffff:127.0.0.1 mapped.example.com
169.254.169.254 metadata.example.com
100.64.0.9 carrier.example.com
fd12::1 unique.example.com
`;

function notFound(_: IncomingMessage, response: ServerResponse): void {
  response.writeHead(404, { "content-type": "text/plain" }).end("there is no such page");
}

async function listening(server: Server): Promise<number> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return (server.address() as AddressInfo).port;
}

export interface WebSession {
  readonly id: string;
  readonly token: string;
  /** A brain's word that it calls a tool; gives the event's id. */
  uses(name: string, input: object, more?: object): Promise<string>;
  /** Asks the proxy to run a call; gives the status. */
  post(toolUseId: string, token?: string): Promise<number>;
  /** Uses and posts; gives the payload of the result. */
  call(name: string, input: object): Promise<WebResult>;
  result(toolUseId: string): Promise<WebResult | undefined>;
  /** Appends an event of the session's brain; gives its id. */
  brainSays(type: string, payload: object): Promise<string>;
  /** A token of a newer brain. */
  taken(): Promise<string>;
  /** As a proxy that dies after it has begun a call. */
  begin(toolUseId: string): Promise<void>;
}

export interface WebResult {
  readonly content: readonly Readonly<Record<string, unknown>>[];
  readonly is_error: boolean;
  readonly failure?: { readonly part: string; readonly reason: string };
  readonly [field: string]: unknown;
}

export interface WebRig {
  readonly vault: VaultRig;
  readonly proxy: TestProxy;
  newSession(
    toolset?: MessageInitShape<typeof WebToolsetSchema>,
    more?: readonly MessageInitShape<typeof ToolSchema>[],
  ): Promise<WebSession>;
  stop(): Promise<void>;
}

export async function startWebRig(
  web: Pick<WebSide, "proxyUrl" | "hostsFile">,
  search: { readonly searchUrl: string; readonly searchKey: string },
): Promise<WebRig> {
  const vault = await startVaultRig();
  const proxy = await startProxy({
    url: vault.server.url,
    key: vault.proxyKey,
    keys: await newSealingKeys(),
    hostsFile: web.hostsFile,
    httpsProxy: web.proxyUrl,
    deny: ["denied.example.org"],
    web: search,
  });
  const signingKey = await loadOrCreateKeyFile(`${vault.server.dataDir}/session-token.key`);
  const harness = vault.server.client(SessionService, await vault.server.localKey("harness"));
  const proxyClient = vault.server.client(CredentialService, vault.proxyKey);
  const pool = vault.database.pool();
  const leaseOf = async (sessionId: string) => {
    const { rows } = await pool.query<{ lease_id: string; lease_epoch: number }>(
      "select lease_id, lease_epoch from sessions where session_id = $1",
      [sessionId],
    );
    return { leaseId: rows[0]!.lease_id, epoch: BigInt(rows[0]!.lease_epoch) };
  };
  const tokenOf = async (sessionId: string) => {
    const claims = { workspace: vault.home.workspaceId, epoch: String((await leaseOf(sessionId)).epoch) };
    const about = { audience: SESSION_TOKEN_AUDIENCE, subject: sessionId, claims };
    return signToken(signingKey, about, 600_000, systemClock);
  };
  return {
    vault,
    proxy,
    async newSession(toolset = {}, more = []) {
      const web = { kind: { case: "webToolset" as const, value: toolset } };
      const spec = { name: "reader", tools: [web, ...more] };
      const { agent } = await vault.server.client(AgentService, vault.home.key).createAgent({ spec });
      const { session } = await vault.home.sessions.createSession({ agentId: agent!.id });
      const id = session!.id;
      await takeSession(vault.database, id);
      const token = await tokenOf(id);
      const made: WebSession = {
        id,
        token,
        async uses(name, input, more = {}) {
          const use = { name, runs_in: "proxy", input, evaluated_permission: "allow", ...more };
          return made.brainSays("agent.tool_use", use);
        },
        async brainSays(type, payload) {
          const eventId = newId("event");
          const events = [{ id: eventId, type, payload: JSON.stringify(payload) }];
          await harness.emitEvents({ sessionId: id, lease: await leaseOf(id), events });
          return eventId;
        },
        async post(toolUseId, as = token) {
          const headers = { authorization: `Bearer ${as}` };
          const response = await fetch(`${proxy.proxyUrl}/web/${id}/${toolUseId}`, {
            method: "POST",
            headers,
          });
          await response.text();
          return response.status;
        },
        async call(name, input) {
          const toolUseId = await made.uses(name, input);
          const status = await made.post(toolUseId);
          const result = await made.result(toolUseId);
          if (result === undefined) throw new Error(`the call has no result, and status ${status}`);
          return result;
        },
        async result(toolUseId) {
          const { rows } = await pool.query<{ payload: string }>(
            "select payload from events where session_id = $1 and answers = $2",
            [id, toolUseId],
          );
          return rows[0] && (JSON.parse(rows[0].payload) as WebResult);
        },
        async taken() {
          await takeSession(vault.database, id);
          return tokenOf(id);
        },
        async begin(toolUseId) {
          const { epoch } = await leaseOf(id);
          await proxyClient.beginWebCall({ sessionId: id, toolUseId, epoch });
        },
      };
      return made;
    },
    async stop() {
      await proxy.stop();
      await vault.stop();
    },
  };
}

export function textOf({ content }: Pick<WebResult, "content">): string {
  return content.map(({ text }) => String(text)).join("\n");
}
