import type { Migration } from "./migration.ts";

/**
 * Tamper evidence: the events of sessions whose workspace wants it are hashed, each with the hash of the one before, by the
 * statements that append them, and servers sign where such a session rests. See docs/log.md.
 */
export const tamperEvidence: Migration = {
  number: 7,
  name: "tamper-evidence",
  compatible: true,
  sql: `
alter table workspaces add column tamper_evident boolean not null default false;
-- Hash of the newest event, or what the first is hashed with. Null: the session's events are not hashed, from its first one on.
alter table sessions add column chain_hash bytea;
-- What a chain begins with that is a copy: JSON text. Empty for others.
alter table sessions add column chain_origin text not null default '';
-- Of the newest signed checkpoint; 0 for none.
alter table sessions add column checkpoint_position bigint not null default 0;
alter table events add column hash bytea;
-- Where the copy of a log that is being written stands.
alter table unfinished_logs add column chain_hash bytea;
alter table unfinished_logs add column chain_origin text not null default '';

-- A row comes with the event that made its session rest; a server signs it soon. What is signed is never signed again.
create table checkpoints (
  session_id text not null references sessions on delete cascade,
  position bigint not null,
  requested_at timestamptz not null default clock_timestamp(),
  hash bytea,
  -- By the clock of the server that signed.
  signed_at timestamptz,
  public_key text,
  signature bytea,
  primary key (session_id, position)
);
create index checkpoints_unsigned on checkpoints (requested_at) where signature is null;

-- The same bytes as eventHash in kit/chain. Each field has its length before it, so that no two events have the same text.
create function event_hash(
  previous bytea, e_session text, e_position bigint, e_id text, e_type text, e_at timestamptz, e_thread text,
  e_payload text, e_internal text
) returns bytea language plpgsql immutable as $body$
declare
  at_ms constant text := floor(extract(epoch from e_at) * 1000)::bigint;
  at_position constant text := e_position;
  fields text;
begin
  fields := '14:tendon.event.1,64:' || encode(previous, 'hex') || ',' || octet_length(e_session) || ':' || e_session || ','
    || octet_length(at_position) || ':' || at_position || ',' || octet_length(e_id) || ':' || e_id || ','
    || octet_length(e_type) || ':' || e_type || ',' || octet_length(at_ms) || ':' || at_ms || ','
    || octet_length(e_thread) || ':' || e_thread || ',64:' || encode(sha256(convert_to(e_payload, 'UTF8')), 'hex') || ',';
  if e_internal is null then
    fields := fields || '0:,';
  else
    fields := fields || '64:' || encode(sha256(convert_to(e_internal, 'UTF8')), 'hex') || ',';
  end if;
  return sha256(convert_to(fields, 'UTF8'));
end
$body$;

-- Over a window in the order of positions: each event's hash, the first one's with "start" before it.
create function event_chain_step(
  previous bytea, start bytea, e_session text, e_position bigint, e_id text, e_type text, e_at timestamptz, e_thread text,
  e_payload text, e_internal text
) returns bytea language plpgsql immutable as $body$
begin
  return event_hash(coalesce(previous, start), e_session, e_position, e_id, e_type, e_at, e_thread, e_payload, e_internal);
end
$body$;
create aggregate event_chain(bytea, text, bigint, text, text, timestamptz, text, text, text) (
  sfunc = event_chain_step, stype = bytea
);

-- Keeps a signature, unless there is one already. The session's row first: whoever deletes a session holds it too.
create function sign_checkpoint(
  c_session text, c_position bigint, c_hash bytea, c_signed_at timestamptz, c_public_key text, c_signature bytea
) returns boolean language plpgsql volatile as $body$
begin
  perform 1 from sessions where session_id = c_session for no key update;
  update checkpoints set hash = c_hash, signed_at = c_signed_at, public_key = c_public_key, signature = c_signature
    where session_id = c_session and position = c_position and signature is null;
  if not found then
    return false;
  end if;
  update sessions set checkpoint_position = greatest(checkpoint_position, c_position) where session_id = c_session;
  return true;
end
$body$;

-- As in migration 2, and hashed. The answer's last line names the sessions that came to rest and are to be signed.
create or replace function append_events(
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
  l_chain bytea[];
  any_chain boolean;
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
  new_hash bytea[];
  rested text;
  found_text text;
begin
  if waits then
    perform set_config('lock_timeout', '10s', true);
    select array_agg(case when r.head is null then 0 when r.archived_at is null then 1 else 2 end order by s.slot),
        array_agg(coalesce(r.head, 0) order by s.slot), array_agg(coalesce(r.lease_id, '') order by s.slot),
        array_agg(coalesce(r.lease_epoch, 0) order by s.slot), array_agg(coalesce(r.has_work, false) order by s.slot),
        array_agg(r.chain_hash order by s.slot), coalesce(bool_or(r.chain_hash is not null), false)
      into l_state, l_head, l_lease, l_epoch, l_work, l_chain, any_chain
      from unnest(s_id) with ordinality as s(id, slot) left join lateral (
        select head, archived_at, lease_id, lease_epoch, work_position > rested_position as has_work, chain_hash
          from sessions where session_id = s.id for no key update
      ) r on true;
  else
    select array_agg(case when r.head is null then 0 when r.archived_at is null then 1 else 2 end order by s.slot),
        array_agg(coalesce(r.head, 0) order by s.slot), array_agg(coalesce(r.lease_id, '') order by s.slot),
        array_agg(coalesce(r.lease_epoch, 0) order by s.slot), array_agg(coalesce(r.has_work, false) order by s.slot),
        array_agg(r.chain_hash order by s.slot), coalesce(bool_or(r.chain_hash is not null), false)
      into l_state, l_head, l_lease, l_epoch, l_work, l_chain, any_chain
      from unnest(s_id) with ordinality as s(id, slot) left join lateral (
        select head, archived_at, lease_id, lease_epoch, work_position > rested_position as has_work, chain_hash
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

  -- What the log knows of these events: themselves, other answers to the same calls, calls. One index alone gives each of
  -- the orders that are asked for here: without statistics, in a new database, any that begins with the session would do,
  -- and be read along the whole log.
  select array_agg(u.n), array_agg(e.position), array_agg(e.type = u.type and e.thread_id = u.thread and e.payload = u.payload
        and e.internal is not distinct from u.internal)
    into k_event, k_position, k_same
    from unnest(e_session, e_id, e_type, e_thread, e_payload, e_internal) with ordinality
        as u(session, id, type, thread, payload, internal, n)
      cross join lateral (
        select * from events where session_id = u.session and event_id >= u.id and event_id <= u.id order by event_id limit 1
      ) e;
  if cardinality(a_event) > 0 then
    select array_agg(u.n), array_agg(e.position), array_agg(e.event_id) into r_event, r_position, r_id
      from unnest(a_event) as u(n) cross join lateral (
        select * from events where session_id = e_session[u.n] and answers >= e_answers[u.n] and answers <= e_answers[u.n]
          order by answers limit 1
      ) e;
  end if;
  if cardinality(p_event) > 0 then
    select array_agg(u.n) into m_event
      from unnest(p_event, p_call) as u(n, call) left join lateral (
        select * from events where session_id = e_session[u.n] and event_id >= u.call and event_id <= u.call
          order by event_id limit 1
      ) e on e.type in ('agent.tool_use', 'agent.mcp_tool_use', 'agent.custom_tool_use')
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
    -- Null unless something is hashed; unnest fills up what is missing.
    if any_chain then
      select array_agg(c.hash order by u.n) into new_hash
        from generate_subscripts(new_at, 1) as u(n) left join (
          select e.n, event_chain(s.hash, e.session, e.position, e.id, e.type, append_time, e.thread, e.payload, e.internal)
              over (partition by e.session order by e.position) as hash
            from unnest(new_at, e_session, e_id, e_type, e_thread, e_payload, e_internal) with ordinality
                as e(position, session, id, type, thread, payload, internal, n)
              join unnest(s_id, l_chain) as s(id, hash) on s.id = e.session
            where e.position is not null and s.hash is not null
        ) c using (n);
    end if;
    insert into events (session_id, position, event_id, type, thread_id, payload, internal, answers, created_at, hash)
      select u.session, u.position, u.id, u.type, u.thread, u.payload, u.internal, u.answers, append_time, u.hash
        from unnest(new_at, e_session, e_id, e_type, e_thread, e_payload, e_internal, e_answers, new_hash)
          as u(position, session, id, type, thread, payload, internal, answers, hash)
        where u.position is not null;
    update sessions s set head = n.head, updated_at = append_time,
        work_since = case when n.work is not null and s.work_position <= s.rested_position then append_time else s.work_since end,
        work_position = coalesce(n.work, s.work_position)
      from (
        select u.session, max(u.position) as head, max(u.position) filter (where u.work) as work
          from unnest(new_at, e_session, e_work) as u(position, session, work)
          where u.position is not null group by u.session
      ) n where s.session_id = n.session;
    if any_chain then
      update sessions s set chain_hash = n.hash
        from (
          select distinct on (u.session) u.session, u.hash from unnest(new_at, e_session, new_hash) as u(position, session, hash)
            where u.hash is not null order by u.session, u.position desc
        ) n where s.session_id = n.session;
      with added as (
        insert into checkpoints (session_id, position)
          select e_session[f.event], new_at[f.event] from unnest(f_event, f_status) as f(event, status)
            where new_hash[f.event] is not null and f.status in ('idle', 'terminated')
          returning session_id
      ) select string_agg(distinct session_id, ' ') into rested from added;
    end if;
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
  return (extract(epoch from append_time) * 1000)::bigint || chr(10) || answer || coalesce(rested, '');
end
$body$;

-- As in migration 2, and hashed.
create or replace function append_event(
  a_session text, a_server boolean, a_expected bigint, a_lease text, a_epoch bigint,
  a_id text, a_type text, a_thread text, a_payload text, a_internal text, a_work boolean
) returns text language plpgsql volatile
  set plan_cache_mode = force_generic_plan
as $body$
declare
  s record;
  append_time timestamptz;
  new_hash bytea;
begin
  select head, archived_at, lease_id, lease_epoch, work_position, rested_position, work_since, chain_hash into s
    from sessions where session_id = a_session for no key update skip locked;
  if not found or (s.archived_at is not null and not a_server) or (a_expected >= 0 and a_expected <> s.head)
      or (a_epoch > 0 and (s.lease_id is distinct from a_lease or s.lease_epoch <> a_epoch)) then
    return null;
  end if;
  perform 1 from events where session_id = a_session and event_id >= a_id and event_id <= a_id order by event_id limit 1;
  if found then
    return null;
  end if;
  append_time := date_trunc('milliseconds', clock_timestamp());
  if s.chain_hash is not null then
    new_hash := event_hash(s.chain_hash, a_session, s.head + 1, a_id, a_type, append_time, a_thread, a_payload, a_internal);
  end if;
  insert into events (session_id, position, event_id, type, thread_id, payload, internal, created_at, hash)
    values (a_session, s.head + 1, a_id, a_type, a_thread, a_payload, a_internal, append_time, new_hash);
  if a_work then
    update sessions set head = s.head + 1, updated_at = append_time, chain_hash = new_hash, work_position = s.head + 1,
        work_since = case when s.work_position <= s.rested_position then append_time else s.work_since end
      where session_id = a_session;
  else
    update sessions set head = s.head + 1, updated_at = append_time, chain_hash = new_hash where session_id = a_session;
  end if;
  return (extract(epoch from append_time) * 1000)::bigint || ' ' || (s.head + 1) || ' '
    || (a_work or s.work_position > s.rested_position);
end
$body$;

-- As in migration 3, and hashed.
create or replace function finish_call(
  c_key text, c_session text, c_result text, e_id text, e_type text, e_payload text, e_answers text,
  out event_position bigint, out append_time timestamptz
) language plpgsql volatile
  set plan_cache_mode = force_generic_plan
as $body$
declare
  s record;
  new_hash bytea;
begin
  select head, work_position, rested_position, work_since, chain_hash into s
    from sessions where session_id = c_session for no key update;
  if not found then
    return;
  end if;
  perform 1 from events where session_id = c_session and answers >= e_answers and answers <= e_answers order by answers limit 1;
  if found then
    return;
  end if;
  update executions set result = c_result, finished_at = clock_timestamp()
    where execution_key = c_key and session_id = c_session and result is null;
  if not found then
    return;
  end if;
  append_time := date_trunc('milliseconds', clock_timestamp());
  if s.chain_hash is not null then
    new_hash := event_hash(s.chain_hash, c_session, s.head + 1, e_id, e_type, append_time, '', e_payload, null);
  end if;
  insert into events (session_id, position, event_id, type, payload, answers, created_at, hash)
    values (c_session, s.head + 1, e_id, e_type, e_payload, e_answers, append_time, new_hash);
  update sessions set head = s.head + 1, updated_at = append_time, chain_hash = new_hash, work_position = s.head + 1,
      work_since = case when s.work_position <= s.rested_position then append_time else s.work_since end
    where session_id = c_session;
  event_position := s.head + 1;
end
$body$;
`,
};
