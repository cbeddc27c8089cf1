/** The baseline of an append: one row into a table with nothing but its key, each INSERT its own transaction. */
import pg from "pg";
import { connectionConfig } from "../../server/store/postgres/direct-connection.ts";
import type { BenchContext } from "./bench.ts";

export interface BareInserts {
  /** Inserts a row over the worker's own connection; on disk when it resolves. */
  insert(worker: number, payload: string): Promise<void>;
}

/** Call it once for a database. */
export async function openBareInserts(
  context: BenchContext,
  { url, connections }: { url: string; connections: number },
): Promise<BareInserts> {
  const clients: pg.Client[] = [];
  context.defer(async () => {
    await Promise.all(clients.map((client) => client.end()));
  });
  for (let n = 0; n < connections; n++) {
    const client = new pg.Client({ ...connectionConfig(url), application_name: "bench baseline" });
    await client.connect();
    clients.push(client);
  }
  const [first] = clients;
  await first?.query(
    "create table bare_rows (writer integer, position bigint, payload text not null, primary key (writer, position))",
  );
  const positions = clients.map(() => 0);
  return {
    async insert(worker, payload) {
      positions[worker] = (positions[worker] ?? 0) + 1;
      await clients[worker]?.query("insert into bare_rows (writer, position, payload) values ($1, $2, $3)", [
        worker,
        positions[worker],
        payload,
      ]);
    },
  };
}
