/** Sessions whose agent has MCP servers, and a proxy that they reach these through. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { systemClock } from "../../kit/clock.ts";
import { newId } from "../../kit/ids.ts";
import { loadOrCreateKeyFile } from "../../kit/sign/key-file.ts";
import { SESSION_TOKEN_AUDIENCE, signToken } from "../../kit/sign/token.ts";
import type { McpToolsetSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { TestDatabase } from "./postgres.ts";
import { newSealingKeys, startProxy, type TestProxy } from "./proxy-rig.ts";
import { startVaultRig, takeSession, type VaultRig } from "./vault-rig.ts";

export interface McpSessionOfTest {
  readonly id: string;
  readonly token: string;
  /** A brain's word that it calls a tool; gives the event's id. */
  uses(name: string, server?: string): Promise<string>;
  /** Payloads of the results in its log. */
  results(): Promise<Record<string, unknown>[]>;
  /** A token of a newer brain. */
  taken(): Promise<string>;
  /** Sends one JSON-RPC request. */
  post(message: object, options?: PostOptions): Promise<Response>;
  /** Opens an MCP session; gives its id. */
  open(): Promise<string>;
}

export interface PostOptions {
  readonly server?: string;
  readonly toolUseId?: string;
  readonly mcpSessionId?: string;
  readonly token?: string;
  readonly accept?: string;
  readonly proxyUrl?: string;
  readonly signal?: AbortSignal;
}

export interface McpRig {
  readonly vault: VaultRig;
  readonly proxy: TestProxy;
  newSession(options: {
    servers: Readonly<Record<string, string>>;
    tools?: MessageInitShape<typeof McpToolsetSchema>["tools"];
    vaultIds?: string[];
    /** Default: the workspace's default. */
    environmentId?: string;
  }): Promise<McpSessionOfTest>;
  stop(): Promise<void>;
}

export const SERVER = "far side";

/** `upstreamCaFile`: certificates that MCP servers may show. */
export async function startMcpRig(
  options: { peers?: boolean; upstreamCaFile?: string; database?: TestDatabase } = {},
): Promise<McpRig> {
  const vault = await startVaultRig(options);
  const proxy = await startProxy({
    url: vault.server.url,
    key: vault.proxyKey,
    keys: await newSealingKeys(),
    upstreamCaFile: options.upstreamCaFile,
  });
  const signingKey = await loadOrCreateKeyFile(`${vault.server.dataDir}/session-token.key`);
  const tokenOf = (sessionId: string, epoch: number) => {
    const claims = { workspace: vault.home.workspaceId, epoch: String(epoch) };
    return signToken(
      signingKey,
      { audience: SESSION_TOKEN_AUDIENCE, subject: sessionId, claims },
      600_000,
      systemClock,
    );
  };
  const harness = vault.server.client(SessionService, await vault.server.localKey("harness"));
  const pool = vault.database.pool();
  const leaseOf = async (sessionId: string) => {
    const { rows } = await pool.query<{ lease_id: string; lease_epoch: number }>(
      "select lease_id, lease_epoch from sessions where session_id = $1",
      [sessionId],
    );
    return { leaseId: rows[0]!.lease_id, epoch: BigInt(rows[0]!.lease_epoch) };
  };
  return {
    vault,
    proxy,
    async newSession({ servers, tools = {}, vaultIds = [], environmentId = "" }) {
      const names = Object.keys(servers);
      const spec = {
        name: "caller",
        mcpServers: names.map((name) => ({ name, url: servers[name]! })),
        tools: names.map((serverName) => ({
          kind: { case: "mcpToolset" as const, value: { serverName, tools } },
        })),
      };
      const { agent } = await vault.server.client(AgentService, vault.home.key).createAgent({ spec });
      const { session } = await vault.home.sessions.createSession({
        agentId: agent!.id,
        vaultIds,
        environmentId,
      });
      const id = session!.id;
      await takeSession(vault.database, id);
      const token = await tokenOf(id, 1);
      const post = (message: object, options: PostOptions = {}) => {
        const {
          server = SERVER,
          toolUseId,
          mcpSessionId,
          accept = "application/json, text/event-stream",
        } = options;
        return fetch(`${options.proxyUrl ?? proxy.proxyUrl}/mcp/${id}/${encodeURIComponent(server)}`, {
          method: "POST",
          headers: {
            authorization: `Bearer ${options.token ?? token}`,
            accept,
            "content-type": "application/json",
            ...(toolUseId !== undefined && { "tendon-tool-use-id": toolUseId }),
            ...(mcpSessionId !== undefined && { "mcp-session-id": mcpSessionId }),
          },
          body: JSON.stringify({ jsonrpc: "2.0", ...message }),
          signal: options.signal ?? null,
        });
      };
      return {
        id,
        token,
        post,
        async uses(name, server = SERVER) {
          const eventId = newId("event");
          const payload = JSON.stringify({ mcp_server_name: server, name, input: {} });
          await harness.emitEvents({
            sessionId: id,
            lease: await leaseOf(id),
            events: [{ id: eventId, type: "agent.mcp_tool_use", payload }],
          });
          return eventId;
        },
        async results() {
          const { rows } = await pool.query<{ payload: string }>(
            "select payload from events where session_id = $1 and type = 'agent.mcp_tool_result' order by position",
            [id],
          );
          return rows.map(({ payload }) => JSON.parse(payload));
        },
        async taken() {
          await takeSession(vault.database, id);
          return tokenOf(id, Number((await leaseOf(id)).epoch));
        },
        async open() {
          const params = {
            protocolVersion: "2025-11-25",
            capabilities: {},
            clientInfo: { name: "t", version: "1" },
          };
          const response = await post({ id: 0, method: "initialize", params });
          await response.text();
          return response.headers.get("mcp-session-id") ?? "";
        },
      };
    },
    async stop() {
      await proxy.stop();
      await vault.stop();
    },
  };
}
