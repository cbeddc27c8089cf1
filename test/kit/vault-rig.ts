/** A server with two workspaces, vaults in each, and sessions that a brain holds; for what proxies do with credentials. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { CredentialNeed } from "../../mcp-proxy/credentials/credentials.ts";
import { AdminService, type AuditEntry, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { CredentialPurpose } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { CredentialUseSchema, PlainSecretSchema } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";
import { startServer, type TestServer } from "./server.ts";

export interface Tenant {
  readonly workspaceId: string;
  /** Of a client. */
  readonly key: string;
  readonly vaults: Client<typeof VaultService>;
  readonly sessions: Client<typeof SessionService>;
  newVault(): Promise<string>;
  /** Gives the id. */
  addCredential(
    vaultId: string,
    use: MessageInitShape<typeof CredentialUseSchema>,
    secret: string | MessageInitShape<typeof PlainSecretSchema>,
  ): Promise<string>;
  /** A session that a brain holds, at epoch 1. */
  newSession(vaultIds: string[]): Promise<string>;
}

export interface VaultRig {
  readonly database: TestDatabase;
  readonly server: TestServer;
  readonly proxyKey: string;
  readonly home: Tenant;
  readonly elsewhere: Tenant;
  /** Newest first. */
  audit(query: { subject?: string; sessionId?: string; action?: string }): Promise<AuditEntry[]>;
  stop(): Promise<void>;
}

/** `database`: one that is there, in place of one of the test file's. */
export async function startVaultRig({
  peers = false,
  database: given,
  servesVariables = false,
}: {
  peers?: boolean;
  database?: TestDatabase;
  servesVariables?: boolean;
} = {}): Promise<VaultRig> {
  const database = given ?? (await createTestDatabase());
  const server = await startServer({ databaseUrl: database.url, peers, servesVariables });
  const admin = server.client(AdminService);
  return {
    database,
    server,
    proxyKey: await server.localKey("proxy"),
    home: await newTenant(server, database, "home"),
    elsewhere: await newTenant(server, database, "elsewhere"),
    audit: async (query) => (await admin.listAuditEntries({ ...query, pageSize: 1000 })).entries,
    async stop() {
      await server.stop();
      await database.drop();
    },
  };
}

async function newTenant(server: TestServer, database: TestDatabase, name: string): Promise<Tenant> {
  const admin = server.client(AdminService);
  const workspaceId = (await admin.createWorkspace({ name })).workspace!.id;
  const { secret: key } = await admin.createApiKey({ name, role: Role.CLIENT, workspaceId });
  const { agent } = await server.client(AgentService, key).createAgent({ spec: { name: "a" } });
  await server.client(EnvironmentService, key).createEnvironment({ spec: { name: "e" }, makeDefault: true });
  const vaults = server.client(VaultService, key);
  const sessions = server.client(SessionService, key);
  return {
    workspaceId,
    key,
    vaults,
    sessions,
    newVault: async () => (await vaults.createVault({ displayName: "a vault" })).vault!.id,
    async addCredential(vaultId, use, secret) {
      const value = typeof secret === "string" ? { value: secret } : secret;
      const request = { vaultId, use, secret: { form: { case: "plain" as const, value } } };
      return (await vaults.createCredential(request)).credential!.id;
    },
    async newSession(vaultIds) {
      const { session } = await sessions.createSession({ agentId: agent!.id, vaultIds });
      await takeSession(database, session!.id);
      return session!.id;
    },
  };
}

/** As a brain that takes the session: the epoch grows. */
export async function takeSession(database: TestDatabase, sessionId: string): Promise<void> {
  await database
    .pool()
    .query("update sessions set lease_epoch = lease_epoch + 1, lease_id = $2 where session_id = $1", [
      sessionId,
      newId("lease"),
    ]);
}

export const bearer = (serverUrl: string) => ({
  kind: { case: "staticBearer" as const, value: { serverUrl } },
});

export const plain = (value: string) => ({ form: { case: "plain" as const, value: { value } } });

/** What a verified session token says, and an MCP server that it wants. */
export function needOf(tenant: Tenant, sessionId: string, destination: string, epoch = 1n): CredentialNeed {
  return { sessionId, workspaceId: tenant.workspaceId, epoch, destination, purpose: CredentialPurpose.MCP };
}
