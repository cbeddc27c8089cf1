import { newId } from "../../../kit/ids.ts";
import type { InstallationStore } from "../installation.ts";
import type { Pool } from "./pool.ts";
import { inTransaction } from "./transaction.ts";

export function createInstallationStore(pool: Pool): InstallationStore {
  return {
    ensure: () =>
      inTransaction(pool, async (transaction) => {
        await transaction.query(
          "insert into installation (installation_id) values ($1) on conflict do nothing",
          [newId("installation")],
        );
        await transaction.query(
          "insert into workspaces (workspace_id, name, is_default) values ($1, 'default', true) on conflict do nothing",
          [newId("workspace")],
        );
        const { rows } = await transaction.query<{ installation_id: string; workspace_id: string }>(
          "select installation_id, workspace_id from installation, workspaces where is_default",
        );
        const [row] = rows;
        if (row === undefined) throw new Error("the database has no default workspace");
        return { installationId: row.installation_id, defaultWorkspaceId: row.workspace_id };
      }),
  };
}
