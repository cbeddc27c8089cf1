/** All routes of the HTTP API; a new part is a line here. */
import type { Clock } from "../../../kit/clock.ts";
import { agentRoutes } from "./agents/agents.ts";
import type { ApiRoute } from "./api-route.ts";
import { environmentRoutes } from "./environments/environments.ts";
import { eventRoutes } from "./events/events.ts";
import { sessionRoutes } from "./sessions/sessions.ts";

export function apiRoutes(clock: Clock): ApiRoute[] {
  return [...agentRoutes(), ...environmentRoutes(), ...sessionRoutes(clock), ...eventRoutes(clock)];
}
