import type { Migration } from "./migration.ts";

/** Parked hands hold no place of their agent; hands are parked when they were unused for long, and released after longer. */
export const parkedHands: Migration = {
  number: 5,
  name: "parked-hands",
  compatible: true,
  sql: `
-- Copied from the environment when the hand was asked for; 0 means the server's default.
alter table hands add column idle_timeout_ms bigint not null default 0;
alter table hands add column parked_at timestamptz;
update hands set parked_at = clock_timestamp() where state = 'parked';
create index hands_parked on hands (parked_at) where state = 'parked';

-- As in migration 3, but a parked hand takes calls only once it was given a place (H5).
create or replace function bind_call(
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
      and state = 'ready' for update;
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
`,
};
