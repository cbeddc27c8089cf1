import type { Migration } from "./migration.ts";

/**
 * Group commit. The function is how a batch of appends is one statement without round trips, also behind a pooler: its
 * plans are kept by each connection, and each of its steps sees what was committed before it had the row's lock.
 */
export const appendEvents: Migration = {
  number: 2,
  name: "append-events",
  compatible: true,
  sql: `
-- Which event of a client was taken in by which 'brain.inputs_consumed': an index over the log that can be made again from it.
create table consumed_inputs (
  session_id text not null references sessions on delete cascade,
  event_id text not null,
  position bigint not null,
  primary key (session_id, event_id)
);

-- Every append holds the lock of its session's row: a foreign key would only repeat that, at a price. Whoever deletes a
-- session deletes its events.
alter table events drop constraint events_session_id_fkey;
-- Appends change no indexed column of a session that has work already; with room on the page they need no new index entries.
alter table sessions set (fillfactor = 70);

-- Appends a batch. s_*: one entry per session, in the order in which rows are locked. i_*: one per item; i_slot names its
-- session, its events are i_first[n] to i_first[n + 1] - 1. e_*: one per event. What few events have stands in lists of its
-- own, by event: a_* the call that it answers, p_* a call that must be in the log, f_* what it changes in its session's
-- row (f_tokens has four a fold), c_* an input that it says was consumed.
--
-- Verdicts, one per item: appended, known (all of it was there), differs, mixed, fenced, archived, mismatch, answered,
-- no_call, missing, busy. A refused item changes nothing. What the log has is looked up for the whole
-- batch at once: no two items of a session may have an event id or an answered call in common.
create function append_events(
  waits boolean,
  s_id text[],
  i_slot integer[], i_first integer[], i_server boolean[], i_expected bigint[], i_lease text[], i_epoch bigint[],
  e_session text[], e_id text[], e_type text[], e_thread text[], e_payload text[], e_internal text[],
  e_answers text[], e_work boolean[],
  a_event integer[], p_event integer[], p_call text[],
  f_event integer[], f_status text[], f_stop text[], f_tokens bigint[],
  c_event integer[], c_id text[]
) returns text language plpgsql volatile
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
as $body$
declare
  items constant integer := cardinality(i_slot);
  l_state integer[];
  l_head bigint[];
  l_lease text[];
  l_epoch bigint[];
  l_work boolean[];
  l_next bigint[];
  k_event integer[];
  k_position bigint[];
  k_same boolean[];
  r_event integer[];
  r_position bigint[];
  r_id text[];
  m_event integer[];
  any_found boolean := false;
  known_at bigint[] := '{}';
  known_as text[] := '{}';
  new_at bigint[] := array_fill(null::bigint, array[cardinality(e_id)]);
  append_time timestamptz;
  answer text := '';
  slot integer;
  verdict text;
  bad integer;
  next_head bigint;
  first_position bigint;
  all_known boolean;
  appends boolean := false;
  found_text text;
begin
  if waits then
    perform set_config('lock_timeout', '10s', true);
    select array_agg(case when r.head is null then 0 when r.archived_at is null then 1 else 2 end order by s.slot),
        array_agg(coalesce(r.head, 0) order by s.slot), array_agg(coalesce(r.lease_id, '') order by s.slot),
        array_agg(coalesce(r.lease_epoch, 0) order by s.slot), array_agg(coalesce(r.has_work, false) order by s.slot)
      into l_state, l_head, l_lease, l_epoch, l_work
      from unnest(s_id) with ordinality as s(id, slot) left join lateral (
        select head, archived_at, lease_id, lease_epoch, work_position > rested_position as has_work
          from sessions where session_id = s.id for no key update
      ) r on true;
  else
    select array_agg(case when r.head is null then 0 when r.archived_at is null then 1 else 2 end order by s.slot),
        array_agg(coalesce(r.head, 0) order by s.slot), array_agg(coalesce(r.lease_id, '') order by s.slot),
        array_agg(coalesce(r.lease_epoch, 0) order by s.slot), array_agg(coalesce(r.has_work, false) order by s.slot)
      into l_state, l_head, l_lease, l_epoch, l_work
      from unnest(s_id) with ordinality as s(id, slot) left join lateral (
        select head, archived_at, lease_id, lease_epoch, work_position > rested_position as has_work
          from sessions where session_id = s.id for no key update skip locked
      ) r on true;
  end if;
  -- A row that was not had is locked by somebody, or is not there.
  if 0 = any(l_state) then
    select array_agg(case when l.state = 0 and not exists (select 1 from sessions where session_id = s_id[l.slot])
        then -1 else l.state end order by l.slot)
      into l_state from unnest(l_state) with ordinality as l(state, slot);
  end if;
  -- Taken under the locks, so times never go back along a session's positions.
  append_time := date_trunc('milliseconds', clock_timestamp());

  -- What the log knows of these events: themselves, other answers to the same calls, calls.
  select array_agg(u.n), array_agg(e.position), array_agg(e.type = u.type and e.thread_id = u.thread and e.payload = u.payload
        and e.internal is not distinct from u.internal)
    into k_event, k_position, k_same
    from unnest(e_session, e_id, e_type, e_thread, e_payload, e_internal) with ordinality
        as u(session, id, type, thread, payload, internal, n)
      join events e on e.session_id = u.session and e.event_id = u.id;
  if cardinality(a_event) > 0 then
    select array_agg(u.n), array_agg(e.position), array_agg(e.event_id) into r_event, r_position, r_id
      from unnest(a_event) as u(n) join events e on e.session_id = e_session[u.n] and e.answers = e_answers[u.n];
  end if;
  if cardinality(p_event) > 0 then
    select array_agg(u.n) into m_event
      from unnest(p_event, p_call) as u(n, call) left join events e on e.session_id = e_session[u.n] and e.event_id = u.call
        and e.type in ('agent.tool_use', 'agent.mcp_tool_use', 'agent.custom_tool_use')
      where e.position is null;
  end if;
  any_found := k_event is not null or r_event is not null or m_event is not null;
  for n in 1 .. coalesce(cardinality(r_event), 0) loop
    known_at[r_event[n]] := r_position[n];
    known_as[r_event[n]] := r_id[n];
  end loop;
  for n in 1 .. coalesce(cardinality(k_event), 0) loop
    known_at[k_event[n]] := k_position[n];
    known_as[k_event[n]] := case when k_same[n] then 'same' else 'differs' end;
  end loop;

  l_next := l_head;
  for item in 1 .. items loop
    slot := i_slot[item];
    next_head := l_next[slot];
    verdict := 'appended';
    bad := 0;
    all_known := false;
    if l_state[slot] < 1 then
      verdict := case l_state[slot] when 0 then 'busy' else 'missing' end;
    else
      if any_found then
        all_known := true;
        for event in i_first[item] .. i_first[item + 1] - 1 loop
          if known_as[event] = 'differs' then
            verdict := 'differs';
            bad := event;
            exit;
          elsif known_as[event] = 'same' then
            if not all_known and verdict = 'appended' then
              verdict := 'mixed';
              bad := event;
            end if;
          else
            all_known := false;
            if known_at[event] is not null and not i_server[item] and verdict = 'appended' then
              verdict := 'answered';
              bad := event;
            elsif event = any(m_event) and verdict = 'appended' then
              verdict := 'no_call';
              bad := event;
            end if;
          end if;
        end loop;
      end if;
      -- In this order: a repeat gets its first answer; a writer that lost its lease learns that before anything else.
      if verdict = 'differs' then
        null;
      elsif all_known then
        verdict := 'known';
      elsif i_epoch[item] > 0 and (l_lease[slot] <> i_lease[item] or l_epoch[slot] <> i_epoch[item]) then
        verdict := 'fenced';
      elsif l_state[slot] = 2 and not i_server[item] then
        verdict := 'archived';
      elsif i_expected[item] >= 0 and i_expected[item] <> next_head and verdict <> 'mixed' then
        verdict := 'mismatch';
      end if;
    end if;

    first_position := next_head + 1;
    if verdict = 'appended' then
      appends := true;
      for event in i_first[item] .. i_first[item + 1] - 1 loop
        if any_found and known_at[event] is not null then
          continue;
        end if;
        next_head := next_head + 1;
        new_at[event] := next_head;
        if e_work[event] then
          l_work[slot] := true;
        end if;
      end loop;
      l_next[slot] := next_head;
    end if;

    -- Event that the verdict is about, first new position, newest position, newest epoch, work; then what was known, if
    -- anything. Ids hold no blanks.
    found_text := '';
    if any_found then
      for event in i_first[item] .. i_first[item + 1] - 1 loop
        found_text := found_text || ' ' || coalesce(known_at[event]::text, '-') || ' ' || coalesce(known_as[event], '-');
      end loop;
    end if;
    answer := answer || verdict || ' ' || bad || ' ' || first_position || ' ' || next_head || ' ' || l_epoch[slot] || ' '
      || l_work[slot] || found_text || chr(10);
  end loop;

  if appends then
    insert into events (session_id, position, event_id, type, thread_id, payload, internal, answers, created_at)
      select u.session, u.position, u.id, u.type, u.thread, u.payload, u.internal, u.answers, append_time
        from unnest(new_at, e_session, e_id, e_type, e_thread, e_payload, e_internal, e_answers)
          as u(position, session, id, type, thread, payload, internal, answers)
        where u.position is not null;
    update sessions s set head = n.head, updated_at = append_time,
        work_since = case when n.work is not null and s.work_position <= s.rested_position then append_time else s.work_since end,
        work_position = coalesce(n.work, s.work_position)
      from (
        select u.session, max(u.position) as head, max(u.position) filter (where u.work) as work
          from unnest(new_at, e_session, e_work) as u(position, session, work)
          where u.position is not null group by u.session
      ) n where s.session_id = n.session;
    for n in 1 .. cardinality(f_event) loop
      continue when new_at[f_event[n]] is null;
      if f_status[n] = '' then
        update sessions set model_requests = model_requests + 1,
            input_tokens = input_tokens + f_tokens[4 * n - 3], output_tokens = output_tokens + f_tokens[4 * n - 2],
            cache_read_input_tokens = cache_read_input_tokens + f_tokens[4 * n - 1],
            cache_creation_input_tokens = cache_creation_input_tokens + f_tokens[4 * n]
          where session_id = e_session[f_event[n]];
      elsif f_status[n] = 'running' then
        update sessions set status = 'running', running_since = coalesce(running_since, append_time)
          where session_id = e_session[f_event[n]];
      else
        update sessions set status = f_status[n],
            stop_reason = case f_status[n] when 'idle' then f_stop[n] else stop_reason end,
            active_ms = active_ms
              + coalesce(greatest(0, floor(extract(epoch from append_time - running_since) * 1000))::bigint, 0),
            running_since = null
          where session_id = e_session[f_event[n]];
      end if;
    end loop;
    if cardinality(c_event) > 0 then
      insert into consumed_inputs (session_id, event_id, position)
        select e_session[c.event], c.id, new_at[c.event] from unnest(c_event, c_id) as c(event, id)
          where new_at[c.event] is not null
        on conflict do nothing;
    end if;
  end if;
  return (extract(epoch from append_time) * 1000)::bigint || chr(10) || answer;
end
$body$;

-- The short way for one event that folds nothing and answers nothing, which is most of them: where nothing speaks against
-- it, it is appended. Otherwise nothing has changed, the answer is null, and append_events says why.
create function append_event(
  a_session text, a_server boolean, a_expected bigint, a_lease text, a_epoch bigint,
  a_id text, a_type text, a_thread text, a_payload text, a_internal text, a_work boolean
) returns text language plpgsql volatile
  set plan_cache_mode = force_generic_plan
as $body$
declare
  s record;
  append_time timestamptz;
begin
  select head, archived_at, lease_id, lease_epoch, work_position, rested_position, work_since into s
    from sessions where session_id = a_session for no key update skip locked;
  if not found or (s.archived_at is not null and not a_server) or (a_expected >= 0 and a_expected <> s.head)
      or (a_epoch > 0 and (s.lease_id is distinct from a_lease or s.lease_epoch <> a_epoch)) then
    return null;
  end if;
  perform 1 from events where session_id = a_session and event_id = a_id;
  if found then
    return null;
  end if;
  append_time := date_trunc('milliseconds', clock_timestamp());
  insert into events (session_id, position, event_id, type, thread_id, payload, internal, created_at)
    values (a_session, s.head + 1, a_id, a_type, a_thread, a_payload, a_internal, append_time);
  if a_work then
    update sessions set head = s.head + 1, updated_at = append_time, work_position = s.head + 1,
        work_since = case when s.work_position <= s.rested_position then append_time else s.work_since end
      where session_id = a_session;
  else
    update sessions set head = s.head + 1, updated_at = append_time where session_id = a_session;
  end if;
  return (extract(epoch from append_time) * 1000)::bigint || ' ' || (s.head + 1) || ' '
    || (a_work or s.work_position > s.rested_position);
end
$body$;
`,
};
