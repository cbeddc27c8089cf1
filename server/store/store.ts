/**
 * What the server keeps, by noun. Areas know these interfaces; `postgres/` implements them, one file a noun.
 * Every method is one transaction. Each says which TendonError it must fail with, and when.
 */
// Each noun's interface stands in its own file; `createPostgresStore` in postgres/store.ts puts them together.
import type { AgentStore } from "./agents.ts";
import type { ApiKeyStore } from "./api-keys.ts";
import type { AuditStore } from "./audit.ts";
import type { BlobStore } from "./blobs.ts";
import type { BudgetStore } from "./budgets.ts";
import type { CheckpointStore } from "./checkpoints.ts";
import type { ClientCallStore } from "./client-calls.ts";
import type { CredentialStore } from "./credentials.ts";
import type { DeploymentRunStore } from "./deployment-runs.ts";
import type { DeploymentStore } from "./deployments.ts";
import type { EnvironmentKeyStore } from "./environment-keys.ts";
import type { EnvironmentStore } from "./environments.ts";
import type { EventStore } from "./events.ts";
import type { ExecutionStore } from "./executions.ts";
import type { FileStore } from "./files.ts";
import type { HandAgentStore } from "./hand-agents.ts";
import type { HandStore } from "./hands.ts";
import type { IdentityStore } from "./identities.ts";
import type { InstallationStore } from "./installation.ts";
import type { JoinTokenStore } from "./join-tokens.ts";
import type { LeaseStore } from "./leases.ts";
import type { LogCopyStore } from "./log-copies.ts";
import type { McpCallStore } from "./mcp-calls.ts";
import type { MemoriesStore } from "./memories.ts";
import type { MemoryStoreStore } from "./memory-stores.ts";
import type { OutcomeStore } from "./outcomes.ts";
import type { ReplicaStore } from "./replicas.ts";
import type { RequestIdStore } from "./request-ids.ts";
import type { RetentionStore } from "./retention.ts";
import type { SessionResourceStore } from "./session-resources.ts";
import type { SessionStore } from "./sessions.ts";
import type { ShownTextStore } from "./shown-texts.ts";
import type { SkillStore } from "./skills.ts";
import type { ThreadStore } from "./threads.ts";
import type { VaultStore } from "./vaults.ts";
import type { WebhookEndpointStore, WebhookOutboxStore } from "./webhooks.ts";
import type { WorkStore } from "./work.ts";
import type { WorkspaceStore } from "./workspaces.ts";

export interface Store {
  /** Whether the database answers. Rejects with UNAVAILABLE. */
  ping(): Promise<{ version: string }>;
  readonly agents: AgentStore;
  readonly apiKeys: ApiKeyStore;
  readonly audit: AuditStore;
  readonly blobs: BlobStore;
  readonly budgets: BudgetStore;
  readonly checkpoints: CheckpointStore;
  readonly clientCalls: ClientCallStore;
  readonly credentials: CredentialStore;
  readonly deploymentRuns: DeploymentRunStore;
  readonly deployments: DeploymentStore;
  readonly environmentKeys: EnvironmentKeyStore;
  readonly environments: EnvironmentStore;
  readonly events: EventStore;
  readonly executions: ExecutionStore;
  readonly files: FileStore;
  readonly handAgents: HandAgentStore;
  readonly hands: HandStore;
  readonly identities: IdentityStore;
  readonly installation: InstallationStore;
  readonly joinTokens: JoinTokenStore;
  readonly leases: LeaseStore;
  readonly logCopies: LogCopyStore;
  readonly mcpCalls: McpCallStore;
  readonly shownTexts: ShownTextStore;
  readonly memories: MemoriesStore;
  readonly memoryStores: MemoryStoreStore;
  readonly outcomes: OutcomeStore;
  readonly replicas: ReplicaStore;
  readonly requestIds: RequestIdStore;
  readonly retention: RetentionStore;
  readonly sessionResources: SessionResourceStore;
  readonly sessions: SessionStore;
  readonly skills: SkillStore;
  readonly threads: ThreadStore;
  readonly vaults: VaultStore;
  readonly webhookEndpoints: WebhookEndpointStore;
  readonly webhookOutbox: WebhookOutboxStore;
  readonly work: WorkStore;
  readonly workspaces: WorkspaceStore;
}
