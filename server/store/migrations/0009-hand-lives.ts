import type { Migration } from "./migration.ts";

/** How long each hand is kept and how old it may become, and what the machines of hand agents have. */
export const handLives: Migration = {
  number: 9,
  name: "hand-lives",
  compatible: true,
  sql: `
-- Copied from the environment when the hand was asked for; 0 means the server's default, and no limit of age.
alter table hands add column keep_parked_ms bigint not null default 0;
alter table hands add column max_age_ms bigint not null default 0;
create index hands_aging on hands (created_at) where max_age_ms > 0 and state in ('ready', 'parked');

-- JSON text of a MachineResources, as the agent last said.
alter table hand_agents add column resources text not null default '{}';
`,
};
