import type { Migration } from "./migration.ts";

/** Sessions whose work towards an outcome is judged once none of their threads works any more. */
export const outcomeWaits: Migration = {
  number: 25,
  name: "outcome-waits",
  compatible: true,
  sql: `
create table outcome_waits (
  session_id text primary key references sessions on delete cascade,
  -- Of the event that defines the outcome.
  event_id text not null,
  -- Head of the log when the session last said that it waits.
  since_position bigint not null
);
`,
};
