import type { Migration } from "./migration.ts";

/** Vaults that belong to one session, for tokens that were given with its repositories: nobody sees them, and they end with it. */
export const sessionVaults: Migration = {
  number: 21,
  name: "session-vaults",
  compatible: true,
  sql: `
alter table vaults add column session_id text references sessions on delete cascade;
create unique index vaults_of_session on vaults (session_id) where session_id is not null;
`,
};
