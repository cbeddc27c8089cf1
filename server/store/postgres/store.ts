/** Puts the nouns together. */
import type { Store } from "../store.ts";
import { createAgentsStore } from "./agents.ts";
import { createApiKeysStore } from "./api-keys.ts";
import { createAuditStore } from "./audit.ts";
import { createEnvironmentsStore } from "./environments.ts";
import { createIdentitiesStore } from "./identities.ts";
import { createInstallationStore } from "./installation.ts";
import { createJoinTokensStore } from "./join-tokens.ts";
import type { Pool } from "./pool.ts";
import { createReplicasStore } from "./replicas.ts";
import { createRequestIdsStore } from "./request-ids.ts";
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
    environments: createEnvironmentsStore(pool),
    identities: createIdentitiesStore(pool),
    installation: createInstallationStore(pool),
    joinTokens: createJoinTokensStore(pool),
    replicas: createReplicasStore(pool),
    requestIds: createRequestIdsStore(pool),
    workspaces: createWorkspacesStore(pool),
  };
}
