import type { Migration } from "./migration.ts";

/**
 * Threads: sessions under a root. What one log has to say to another is noted in the transaction that appends it, so that
 * it is passed on once whoever dies in between.
 */
export const threads: Migration = {
  number: 11,
  name: "threads",
  compatible: true,
  sql: `
-- Null: a session of its own.
alter table sessions add column root_session_id text;
alter table sessions add column parent_session_id text;
alter table sessions add column thread_depth integer not null default 0;
-- Whose hands its calls run in; null: its own.
alter table sessions add column hands_session_id text;
create index sessions_threads on sessions (root_session_id, created_at, session_id) where root_session_id is not null;
create index sessions_live_threads on sessions (root_session_id) where root_session_id is not null and archived_at is null;

-- Calls that stay open until threads rest.
create table thread_waits (
  session_id text not null references sessions on delete cascade,
  call_id text not null,
  thread_ids text[] not null,
  -- The first that rests is enough.
  waits_for_any boolean not null,
  deadline_at timestamptz not null,
  primary key (session_id, call_id)
);
create index thread_waits_due on thread_waits (deadline_at);

-- Events that another log of the tree has to hear of, until it has.
create table tree_news (
  session_id text not null,
  position bigint not null,
  primary key (session_id, position)
);

-- Results of calls that the root's log shows, because a client was asked about them, are shown there too. An interrupt is
-- news where there are threads: they are made under the lock of the root's row, which its log's writer has now.
create function note_tree_news() returns trigger language plpgsql as $body$
begin
  if new.type in ('agent.tool_result', 'agent.mcp_tool_result') then
    perform 1 from sessions s join events e on e.session_id = s.root_session_id and e.event_id = new.answers
      where s.session_id = new.session_id;
    if not found then
      return null;
    end if;
  end if;
  if new.type = 'user.interrupt' and new.thread_id = '' and not starts_with(new.session_id, 'sthr_') then
    perform 1 from sessions where root_session_id = new.session_id limit 1;
    if not found then
      return null;
    end if;
  end if;
  insert into tree_news (session_id, position) values (new.session_id, new.position) on conflict do nothing;
  return null;
end
$body$;
create trigger events_tree_news after insert on events for each row when (
  (starts_with(new.session_id, 'sthr_') and (
    new.type in ('session.status_running', 'session.status_idle', 'session.status_rescheduled', 'session.status_terminated',
      'session.thread_created', 'agent.custom_tool_use', 'agent.tool_result', 'agent.mcp_tool_result', 'user.tool_confirmation',
      'user.custom_tool_result', 'user.tool_result')
    or (new.type in ('agent.tool_use', 'agent.mcp_tool_use') and new.payload ~ '"evaluated_permission"\\s*:\\s*"ask"')))
  or new.type = 'user.interrupt'
  or (new.thread_id <> '' and starts_with(new.type, 'user.'))
) execute function note_tree_news();

-- What a tree has used and what its root allows; no row for a session without a budget.
create function budget_standing(
  of_session text,
  out budget text, out age_ms bigint, out tokens bigint, out list_cost_nano_usd bigint, out unpriced_requests bigint,
  out model_requests bigint
) returns setof record language sql stable as $body$
  select r.budget, floor(extract(epoch from clock_timestamp() - r.created_at) * 1000)::bigint,
      sum(t.input_tokens + t.output_tokens + t.cache_read_input_tokens + t.cache_creation_input_tokens)::bigint,
      sum(t.list_cost_nano_usd)::bigint, sum(t.unpriced_requests)::bigint, sum(t.model_requests)::bigint
    from sessions s join sessions r on r.session_id = coalesce(s.root_session_id, s.session_id)
      cross join lateral (
        select r.input_tokens, r.output_tokens, r.cache_read_input_tokens, r.cache_creation_input_tokens, r.list_cost_nano_usd,
          r.unpriced_requests, r.model_requests
        union all
        select input_tokens, output_tokens, cache_read_input_tokens, cache_creation_input_tokens, list_cost_nano_usd,
          unpriced_requests, model_requests from sessions where root_session_id = r.session_id
      ) t
    where s.session_id = of_session and r.budget <> '{}'
    group by r.session_id, r.budget, r.created_at
$body$;
`,
};
