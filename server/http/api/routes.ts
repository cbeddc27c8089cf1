/** All routes of the HTTP API; a new part is a line here. */
import type { Clock } from "../../../kit/clock.ts";
import { agentRoutes } from "./agents/agents.ts";
import type { ApiRoute } from "./api-route.ts";
import { deploymentRunRoutes } from "./deployments/deployment-runs.ts";
import { deploymentRoutes } from "./deployments/deployments.ts";
import { environmentKeyRoutes } from "./environments/environment-keys.ts";
import { environmentRoutes } from "./environments/environments.ts";
import { eventRoutes } from "./events/events.ts";
import { fileRoutes } from "./files/files.ts";
import { memoryRoutes } from "./memory/memories.ts";
import { memoryStoreRoutes } from "./memory/memory-stores.ts";
import { memoryVersionRoutes } from "./memory/memory-versions.ts";
import { resourceRoutes } from "./sessions/resources.ts";
import { sessionRoutes } from "./sessions/sessions.ts";
import { skillRoutes } from "./skills/skills.ts";
import { threadRoutes } from "./threads/threads.ts";
import { credentialRoutes } from "./vaults/credentials.ts";
import { vaultRoutes } from "./vaults/vaults.ts";
import { webhookDeliveryRoutes } from "./webhooks/webhook-deliveries.ts";
import { webhookEndpointRoutes } from "./webhooks/webhook-endpoints.ts";
import { workRoutes } from "./work/work.ts";

export function apiRoutes(clock: Clock): ApiRoute[] {
  return [
    ...agentRoutes(),
    ...environmentRoutes(),
    ...environmentKeyRoutes(),
    ...workRoutes(),
    ...sessionRoutes(clock),
    ...resourceRoutes(),
    ...eventRoutes(clock),
    ...threadRoutes(clock),
    ...deploymentRoutes(),
    ...deploymentRunRoutes(),
    ...vaultRoutes(),
    ...credentialRoutes(clock),
    ...fileRoutes(),
    ...skillRoutes(),
    ...memoryStoreRoutes(),
    ...memoryRoutes(),
    ...memoryVersionRoutes(),
    ...webhookEndpointRoutes(),
    ...webhookDeliveryRoutes(),
  ];
}
