import type { Migration } from "./migration.ts";

/** Which tools of the web proxies run, and what searches of sessions cost. */
export const webTools: Migration = {
  number: 22,
  name: "web-tools",
  compatible: true,
  sql: `
alter table connected_proxies add column web_fetch boolean not null default false;
alter table connected_proxies add column web_search boolean not null default false;
alter table sessions add column web_search_requests bigint not null default 0;

-- append_events counts searches, too: a fold of status 'searched' has their number as its first count and their list price
-- where others have a stop reason.
do $do$
declare
  before constant text := pg_get_functiondef('append_events'::regproc);
  branch constant text := 'elsif f_status[n] = ''running'' then';
begin
  if position(branch in before) = 0 then
    raise exception 'append_events is not what this migration changes';
  end if;
  execute replace(before, branch, 'elsif f_status[n] = ''searched'' then
        update sessions set web_search_requests = web_search_requests + f_tokens[4 * n - 3],
            list_cost_nano_usd = list_cost_nano_usd + coalesce(nullif(f_stop[n], ''''), ''0'')::bigint
          where session_id = e_session[f_event[n]];
      ' || branch);
end
$do$;
`,
};
