/** How the embedded Postgres is set: small, durable, silent about contents. Passed at every start, so that a new release's values count at once. */
import { SOCKET_PORT } from "./socket-dir.ts";

export const MAX_CONNECTIONS = 100;

const SETTINGS: Record<string, string> = {
  // Reached through its socket only.
  listen_addresses: "",
  port: String(SOCKET_PORT),
  unix_socket_permissions: "0700",
  max_connections: String(MAX_CONNECTIONS),

  // An acknowledged append is on disk (L2).
  fsync: "on",
  synchronous_commit: "on",
  full_page_writes: "on",

  // Sized for a laptop that has other things to do.
  shared_buffers: "64MB",
  max_wal_size: "256MB",
  min_wal_size: "32MB",
  wal_level: "minimal",
  max_wal_senders: "0",
  max_logical_replication_workers: "0",
  max_parallel_workers_per_gather: "0",
  io_method: "sync",
  // Queries are short; compiling them would cost more than it gives.
  jit: "off",

  timezone: "UTC",
  log_timezone: "UTC",
  log_destination: "stderr",
  logging_collector: "off",
  log_checkpoints: "off",
  // No statement, parameter or row value reaches the log: they may hold what users wrote (S2).
  log_min_error_statement: "panic",
  log_error_verbosity: "terse",
  log_parameter_max_length_on_error: "0",
};

/** The arguments for `postgres`, each setting as `-c name=value`. */
export function postgresSettings(socketDir: string): string[] {
  const settings = { ...SETTINGS, unix_socket_directories: quoteListItem(socketDir) };
  return Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`]);
}

/** The setting is a list: a path with a comma or a space has to be one quoted item. */
function quoteListItem(path: string): string {
  return `"${path.replaceAll('"', '""')}"`;
}
