import type { Migration } from "./migration.ts";

/**
 * What work distribution asks for: waiting sessions and held ones by workspace, sessions whose holders died, and calls that
 * clients have to answer by some time. And what models cost by their list prices.
 */
export const brains: Migration = {
  number: 8,
  name: "brains",
  compatible: true,
  sql: `
-- How often in a row a holder has died before the log had more of it than that it had begun to ask a model (E4).
alter table sessions add column barren_deaths integer not null default 0;
-- When a call that waits for a client has waited for as long as its agent allows; null: it waits for ever, or none waits.
alter table sessions add column answers_due_at timestamptz;
create index sessions_work_by_workspace on sessions (workspace_id, work_since) where work_position > rested_position and archived_at is null;
create index sessions_held on sessions (workspace_id) where lease_id is not null;
create index sessions_suspect on sessions (work_since)
  where silent_deaths + barren_deaths > 0 and work_position > rested_position and archived_at is null;
create index sessions_answers_due on sessions (answers_due_at) where answers_due_at is not null;

-- By list price, as each request's end says: in thousand-millionths of a US dollar, and requests that have no price.
alter table sessions add column list_cost_nano_usd bigint not null default 0;
alter table sessions add column unpriced_requests bigint not null default 0;
-- What sessions had used that are erased by now: input, output, read from and written to a cache, requests, milliseconds,
-- list price, requests without a price.
alter table workspaces add column erased_usage bigint[] not null default '{0,0,0,0,0,0,0,0}';

create function keep_erased_usage() returns trigger language plpgsql as $body$
begin
  update workspaces set erased_usage = array[
      erased_usage[1] + old.input_tokens, erased_usage[2] + old.output_tokens, erased_usage[3] + old.cache_read_input_tokens,
      erased_usage[4] + old.cache_creation_input_tokens, erased_usage[5] + old.model_requests, erased_usage[6] + old.active_ms,
      erased_usage[7] + old.list_cost_nano_usd, erased_usage[8] + old.unpriced_requests
    ] where workspace_id = old.workspace_id;
  return null;
end
$body$;
create trigger sessions_erased after delete on sessions for each row when (old.model_requests > 0)
  execute function keep_erased_usage();

-- append_events counts them too. Where a usage fold has no status it has no stop reason either: there stands what the request
-- cost, '-' for one without a price, and nothing from programs that do not know of prices.
do $do$
declare
  before constant text := pg_get_functiondef('append_events'::regproc);
  counted constant text := 'set model_requests = model_requests + 1,';
begin
  if position(counted in before) = 0 then
    raise exception 'append_events is not what this migration changes';
  end if;
  execute replace(before, counted, counted || '
            list_cost_nano_usd = list_cost_nano_usd + coalesce(nullif(nullif(f_stop[n], ''''), ''-'')::bigint, 0),
            unpriced_requests = unpriced_requests + case when f_stop[n] = ''-'' then 1 else 0 end,');
end
$do$;
`,
};
