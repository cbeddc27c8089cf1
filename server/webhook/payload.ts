/** The body of a delivery (pure): ids alone, so that it tells nobody more than that something happened. */
import type { WaitingDelivery } from "../store/webhooks.ts";

type Told = Pick<WaitingDelivery, "eventId" | "happenedAt" | "type" | "subjectId" | "workspaceId" | "more">;

/** The same text for every attempt. */
export function payloadOf(told: Told, installationId: string): string {
  return JSON.stringify({
    type: "event",
    id: told.eventId,
    created_at: told.happenedAt.toISOString(),
    data: {
      type: told.type,
      id: told.subjectId,
      organization_id: installationId,
      workspace_id: told.workspaceId,
      ...(JSON.parse(told.more) as object),
    },
  });
}
