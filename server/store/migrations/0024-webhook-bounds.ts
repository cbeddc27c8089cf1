import type { Migration } from "./migration.ts";

/** Events of webhooks have a bound for each workspace; what is dropped unsent is counted where people look. */
export const webhookBounds: Migration = {
  number: 24,
  name: "webhook-bounds",
  compatible: true,
  sql: `
create index webhook_events_of_workspace on webhook_events (workspace_id, number);
alter table webhook_endpoints add column dropped_deliveries bigint not null default 0;
alter table webhook_endpoints add column last_dropped_at timestamptz;
`,
};
