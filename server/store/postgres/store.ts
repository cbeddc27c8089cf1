/** Puts the nouns together. */
import type { Store } from "../store.ts";
import { createAgentsStore } from "./agents.ts";
import { createApiKeysStore } from "./api-keys.ts";
import { createAuditStore } from "./audit.ts";
import { createBlobStore } from "./blobs.ts";
import { createEnvironmentsStore } from "./environments.ts";
import { createEventStore } from "./events.ts";
import { createExecutionStore } from "./executions.ts";
import { createHandAgentStore } from "./hand-agents.ts";
import { createHandStore } from "./hands.ts";
import { createIdentitiesStore } from "./identities.ts";
import { createInstallationStore } from "./installation.ts";
import { createJoinTokensStore } from "./join-tokens.ts";
import { createLeaseStore } from "./leases.ts";
import { createLogCopyStore } from "./log-copies.ts";
import type { Pool } from "./pool.ts";
import { createReplicasStore } from "./replicas.ts";
import { createRequestIdsStore } from "./request-ids.ts";
import { createRetentionStore } from "./retention.ts";
import { createSessionStore } from "./sessions.ts";
import { createWorkspacesStore } from "./workspaces.ts";

export function createPostgresStore(pool: Pool): Store {
  return {
    async ping() {
      const { rows } = await pool.query<{ version: string }>(
        "select current_setting('server_version') as version",
      );
      return { version: rows[0]!.version };
    },
    agents: createAgentsStore(pool),
    apiKeys: createApiKeysStore(pool),
    audit: createAuditStore(pool),
    blobs: createBlobStore(pool),
    environments: createEnvironmentsStore(pool),
    events: createEventStore(pool),
    executions: createExecutionStore(pool),
    handAgents: createHandAgentStore(pool),
    hands: createHandStore(pool),
    identities: createIdentitiesStore(pool),
    installation: createInstallationStore(pool),
    joinTokens: createJoinTokensStore(pool),
    leases: createLeaseStore(pool),
    logCopies: createLogCopyStore(pool),
    replicas: createReplicasStore(pool),
    requestIds: createRequestIdsStore(pool),
    retention: createRetentionStore(pool),
    sessions: createSessionStore(pool),
    workspaces: createWorkspacesStore(pool),
  };
}
