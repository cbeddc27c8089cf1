import type { Migration } from "./migration.ts";

/**
 * The two transactions of a call, each as one statement: with a round trip for every step they were most of what a short
 * call took. Plans are kept by each connection, and every step sees what was committed before it had the session's row.
 */
export const callsAtOnce: Migration = {
  number: 3,
  name: "calls-at-once",
  compatible: true,
  sql: `
-- X1a for a brain's call on a hand that the caller knows: under the lock of the session's row it checks the epoch, that the
-- log has this very call and no result, that the agent is there with this journal and that the hand takes calls on it; then
-- the execution is bound. Where anything speaks against it nothing has changed and all outputs are null: the longer way
-- decides what that was. Texts of JSON are compared as they were written; where only their meaning is equal, the longer
-- way sees that too.
create function bind_call(
  c_key text, c_session text, c_execution text, c_slot text, c_name text, c_input text, c_input_hash bytea, c_timeout_ms bigint,
  -- Name and slot as JSON texts.
  c_name_json text, c_slot_json text,
  c_workspace text, c_lease text, c_epoch bigint,
  h_hand text, h_agent text, h_journal text,
  out owner_number bigint, out notice text, out bound_at timestamptz
) language plpgsql volatile
  set plan_cache_mode = force_generic_plan
as $body$
#variable_conflict use_column
declare
  s record;
  e record;
  h record;
  use json;
begin
  select workspace_id, archived_at, lease_id, lease_epoch into s
    from sessions where session_id = c_session for no key update;
  if not found or s.archived_at is not null or s.workspace_id <> c_workspace
      or s.lease_id is distinct from c_lease or s.lease_epoch <> c_epoch then
    return;
  end if;
  select type, payload into e from events where session_id = c_session and event_id = c_execution;
  if not found or e.type <> 'agent.tool_use' then
    return;
  end if;
  begin
    use := e.payload::json;
    if (use -> 'name')::text is distinct from c_name_json or (use -> 'input')::text is distinct from c_input
        or coalesce((use -> 'hand')::text, '""') <> c_slot_json then
      return;
    end if;
  exception when data_exception or statement_too_complex then
    -- JSON that JavaScript reads and Postgres does not.
    return;
  end;
  perform 1 from events where session_id = c_session and answers = c_execution;
  if found then
    return;
  end if;
  perform 1 from executions where execution_key = c_key;
  if found then
    return;
  end if;
  perform 1 from hand_agents where hand_agent_id = h_agent and journal_id = h_journal and replica_id is not null
    and revoked_at is null for share;
  if not found then
    return;
  end if;
  select hands.owner_number, hands.notice into h from hands
    where hand_id = h_hand and hand_agent_id = h_agent and session_id = c_session and slot = c_slot
      and state in ('ready', 'parked') for update;
  if not found then
    return;
  end if;
  update hands set last_used_at = clock_timestamp(), notice = '' where hand_id = h_hand;
  insert into executions (execution_key, workspace_id, session_id, execution_id, hand_id, hand_agent_id, journal_id, owner_number,
      name, input, input_hash, timeout_ms, answers_tool_use, slot, notice)
    values (c_key, c_workspace, c_session, c_execution, h_hand, h_agent, h_journal, h.owner_number,
      c_name, c_input, c_input_hash, c_timeout_ms, true, c_slot, h.notice)
    returning executions.bound_at into bound_at;
  owner_number := h.owner_number;
  notice := h.notice;
end
$body$;

-- X3 for a bound call that nobody has answered: its result is stored, and appended to the session's log as the server
-- appends: also to an archived session, and as work for a brain. Gives the event's position and time, or nulls where
-- anything speaks against it; then nothing has changed, and the longer way decides what stands.
create function finish_call(
  c_key text, c_session text, c_result text, e_id text, e_type text, e_payload text, e_answers text,
  out event_position bigint, out append_time timestamptz
) language plpgsql volatile
  set plan_cache_mode = force_generic_plan
as $body$
declare
  s record;
begin
  select head, work_position, rested_position, work_since into s
    from sessions where session_id = c_session for no key update;
  if not found then
    return;
  end if;
  perform 1 from events where session_id = c_session and answers = e_answers;
  if found then
    return;
  end if;
  update executions set result = c_result, finished_at = clock_timestamp()
    where execution_key = c_key and session_id = c_session and result is null;
  if not found then
    return;
  end if;
  append_time := date_trunc('milliseconds', clock_timestamp());
  insert into events (session_id, position, event_id, type, payload, answers, created_at)
    values (c_session, s.head + 1, e_id, e_type, e_payload, e_answers, append_time);
  update sessions set head = s.head + 1, updated_at = append_time, work_position = s.head + 1,
      work_since = case when s.work_position <= s.rested_position then append_time else s.work_since end
    where session_id = c_session;
  event_position := s.head + 1;
end
$body$;
`,
};
