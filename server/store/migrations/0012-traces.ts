import type { Migration } from "./migration.ts";

/**
 * The trace under which a client appended an event: beside the log, so that payloads, hashes and repeats of a request stay
 * what they are. Only events that came with one have a row. See docs/tracing.md.
 */
export const traces: Migration = {
  number: 12,
  name: "traces",
  compatible: true,
  sql: `
create table event_traces (
  session_id text not null references sessions on delete cascade,
  event_id text not null,
  -- As W3C has it.
  trace_parent text not null,
  primary key (session_id, event_id)
);
`,
};
