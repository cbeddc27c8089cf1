/**
 * What the server keeps, by noun. Areas know these interfaces; `postgres/` implements them, one file a noun.
 * Every method is one transaction. Each says which TendonError it must fail with, and when.
 */
// Each noun's interface stands in its own file; `createPostgresStore` in postgres/store.ts puts them together.
import type { AgentsStore } from "./agents.ts";
import type { ApiKeysStore } from "./api-keys.ts";
import type { AuditStore } from "./audit.ts";
import type { BlobStore } from "./blobs.ts";
import type { EnvironmentsStore } from "./environments.ts";
import type { EventStore } from "./events.ts";
import type { ExecutionStore } from "./executions.ts";
import type { HandAgentStore } from "./hand-agents.ts";
import type { HandStore } from "./hands.ts";
import type { IdentitiesStore } from "./identities.ts";
import type { InstallationStore } from "./installation.ts";
import type { JoinTokensStore } from "./join-tokens.ts";
import type { LeaseStore } from "./leases.ts";
import type { LogCopyStore } from "./log-copies.ts";
import type { ReplicasStore } from "./replicas.ts";
import type { RequestIdsStore } from "./request-ids.ts";
import type { RetentionStore } from "./retention.ts";
import type { SessionStore } from "./sessions.ts";
import type { WorkspacesStore } from "./workspaces.ts";

export interface Store {
  /** Whether the database answers. Rejects with UNAVAILABLE. */
  ping(): Promise<{ version: string }>;
  readonly agents: AgentsStore;
  readonly apiKeys: ApiKeysStore;
  readonly audit: AuditStore;
  readonly blobs: BlobStore;
  readonly environments: EnvironmentsStore;
  readonly events: EventStore;
  readonly executions: ExecutionStore;
  readonly handAgents: HandAgentStore;
  readonly hands: HandStore;
  readonly identities: IdentitiesStore;
  readonly installation: InstallationStore;
  readonly joinTokens: JoinTokensStore;
  readonly leases: LeaseStore;
  readonly logCopies: LogCopyStore;
  readonly replicas: ReplicasStore;
  readonly requestIds: RequestIdsStore;
  readonly retention: RetentionStore;
  readonly sessions: SessionStore;
  readonly workspaces: WorkspacesStore;
}
