/** Puts the nouns together. */
import type { Store } from "../store.ts";
import { createAgentStore } from "./agents.ts";
import { createApiKeyStore } from "./api-keys.ts";
import { createAuditStore } from "./audit.ts";
import { createBlobStore } from "./blobs.ts";
import { createBudgetStore } from "./budgets.ts";
import { createCheckpointStore } from "./checkpoints.ts";
import { createClientCallStore } from "./client-calls.ts";
import { createCredentialStore } from "./credentials.ts";
import { createDeploymentRunStore } from "./deployment-runs.ts";
import { createDeploymentStore } from "./deployments.ts";
import { createEnvironmentKeyStore } from "./environment-keys.ts";
import { createEnvironmentStore } from "./environments.ts";
import { createEventStore } from "./events.ts";
import { createExecutionStore } from "./executions.ts";
import { createFileStore } from "./files.ts";
import { createHandAgentStore } from "./hand-agents.ts";
import { createHandStore } from "./hands.ts";
import { createIdentityStore } from "./identities.ts";
import { createInstallationStore } from "./installation.ts";
import { createJoinTokenStore } from "./join-tokens.ts";
import { createLeaseStore } from "./leases.ts";
import { createLogCopyStore } from "./log-copies.ts";
import { createMcpCallStore } from "./mcp-calls.ts";
import { createMemoriesStore } from "./memories.ts";
import { createMemoryStoreStore } from "./memory-stores.ts";
import { createOutcomeStore } from "./outcomes.ts";
import type { Pool } from "./pool.ts";
import { createReplicaStore } from "./replicas.ts";
import { createRequestIdStore } from "./request-ids.ts";
import { createRetentionStore } from "./retention.ts";
import { createSessionResourceStore } from "./session-resources.ts";
import { createSessionStore } from "./sessions.ts";
import { createShownTextStore } from "./shown-texts.ts";
import { createSkillStore } from "./skills.ts";
import { createThreadStore } from "./threads.ts";
import { createVaultStore } from "./vaults.ts";
import { createWebhookEndpointStore } from "./webhook-endpoints.ts";
import { createWebhookOutboxStore } from "./webhook-outbox.ts";
import { createWorkStore } from "./work.ts";
import { createWorkspaceStore } from "./workspaces.ts";

export function createPostgresStore(pool: Pool): Store {
  return {
    async ping() {
      const { rows } = await pool.query<{ version: string }>(
        "select current_setting('server_version') as version",
      );
      return { version: rows[0]!.version };
    },
    agents: createAgentStore(pool),
    apiKeys: createApiKeyStore(pool),
    audit: createAuditStore(pool),
    blobs: createBlobStore(pool),
    budgets: createBudgetStore(pool),
    checkpoints: createCheckpointStore(pool),
    clientCalls: createClientCallStore(pool),
    credentials: createCredentialStore(pool),
    deploymentRuns: createDeploymentRunStore(pool),
    deployments: createDeploymentStore(pool),
    environmentKeys: createEnvironmentKeyStore(pool),
    environments: createEnvironmentStore(pool),
    events: createEventStore(pool),
    executions: createExecutionStore(pool),
    files: createFileStore(pool),
    handAgents: createHandAgentStore(pool),
    hands: createHandStore(pool),
    identities: createIdentityStore(pool),
    installation: createInstallationStore(pool),
    joinTokens: createJoinTokenStore(pool),
    leases: createLeaseStore(pool),
    logCopies: createLogCopyStore(pool),
    mcpCalls: createMcpCallStore(pool),
    shownTexts: createShownTextStore(pool),
    memories: createMemoriesStore(pool),
    memoryStores: createMemoryStoreStore(pool),
    outcomes: createOutcomeStore(pool),
    replicas: createReplicaStore(pool),
    requestIds: createRequestIdStore(pool),
    retention: createRetentionStore(pool),
    sessionResources: createSessionResourceStore(pool),
    sessions: createSessionStore(pool),
    skills: createSkillStore(pool),
    threads: createThreadStore(pool),
    vaults: createVaultStore(pool),
    webhookEndpoints: createWebhookEndpointStore(pool),
    webhookOutbox: createWebhookOutboxStore(pool),
    work: createWorkStore(pool),
    workspaces: createWorkspaceStore(pool),
  };
}
