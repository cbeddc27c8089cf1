import type { Migration } from "./migration.ts";

/** Which hands were made because a model had begun a call, before anybody knew whether it would come (H4). */
export const speculativeHands: Migration = {
  number: 14,
  name: "speculative-hands",
  compatible: true,
  sql: `
alter table hands add column speculative boolean not null default false;
create index hands_unused_speculative on hands (created_at) where speculative and state = 'ready' and last_used_at is null;
`,
};
