import type { Migration } from "./migration.ts";

/** Calls of MCP servers: a row before a proxy sends one, and its result once there is one (X1). */
export const mcpCalls: Migration = {
  number: 15,
  name: "mcp-calls",
  compatible: true,
  sql: `
create table mcp_calls (
  session_id text not null references sessions on delete cascade,
  tool_use_id text not null,
  epoch bigint not null,
  begun_at timestamptz not null default clock_timestamp(),
  -- JSON text of the MCP result.
  result text,
  finished_at timestamptz,
  primary key (session_id, tool_use_id)
);
`,
};
