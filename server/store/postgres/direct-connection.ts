/** One connection that is kept: for session locks and LISTEN, which a pooler in between would break. Everything else goes through the pool. */
import pg from "pg";
import { TendonError } from "../../../kit/errors.ts";
import { columnTypes } from "./column-types.ts";
import { translateFailure } from "./failure.ts";

export interface DirectConnectionOptions {
  /** A direct URL: not that of a transaction-mode pooler. */
  url: string;
  /** What `pg_stat_activity` shows. */
  applicationName: string;
  /** Called for every NOTIFY on a channel that the connection listens to. */
  onNotification?: (channel: string, payload: string) => void;
}

export interface DirectConnection {
  query<Row>(sql: string, values?: readonly unknown[]): Promise<Row[]>;
  isOpen(): boolean;
  /** Resolves when the connection has ended, for whatever reason, with the error if there was one. */
  readonly ended: Promise<Error | undefined>;
  /** May be called twice; never rejects. */
  close(): Promise<void>;
}

const CONNECT_TIMEOUT_MS = 10_000;

/** Throws `UNAVAILABLE` when Postgres cannot be reached. */
export async function openDirectConnection(options: DirectConnectionOptions): Promise<DirectConnection> {
  const client = new pg.Client({
    ...connectionConfig(options.url),
    application_name: options.applicationName,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    keepAlive: true,
    types: columnTypes,
  });
  let open = true;
  let failure: Error | undefined;
  const ended = new Promise<Error | undefined>((resolve) => {
    client.on("error", (error) => {
      failure ??= error;
    });
    client.on("end", () => {
      open = false;
      resolve(failure);
    });
  });
  const { onNotification } = options;
  if (onNotification) {
    client.on("notification", ({ channel, payload }) => onNotification(channel, payload ?? ""));
  }
  try {
    await client.connect();
  } catch (error) {
    await client.end().catch(() => {});
    throw translateFailure(error);
  }
  return {
    ended,
    isOpen: () => open,
    async query<Row>(sql: string, values: readonly unknown[] = []) {
      try {
        return (await client.query(sql, [...values])).rows as Row[];
      } catch (error) {
        throw translateFailure(error);
      }
    },
    async close() {
      if (open) await client.end().catch(() => {});
    },
  };
}

/** Checks the URL here: the client library's own error would repeat it, password included. */
export function connectionConfig(url: string): pg.ClientConfig {
  if (!/^postgres(ql)?:\/\//.test(url)) {
    throw new TendonError(
      "INVALID_FIELD",
      "the database URL must begin with postgresql://, as in postgresql://user:password@host:5432/database",
    );
  }
  return { connectionString: url };
}
