import type { Migration } from "./migration.ts";

/**
 * The loop that a session needs, worked out once: the query for waiting work runs over all workspaces, and one agent that
 * Postgres cannot read must not stop it.
 */
export const sessionLoop: Migration = {
  number: 6,
  name: "session-loop",
  compatible: true,
  sql: `
create function loop_of(agent text) returns text language plpgsql immutable as $$
begin
  return coalesce(nullif(agent::json #>> '{spec,loop}', ''), 'claude');
exception when others then
  return 'claude';
end
$$;

alter table sessions add column loop text not null generated always as (loop_of(agent)) stored;
`,
};
