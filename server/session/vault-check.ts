/** Which vaults a session may be given: those of its own workspace that are not archived. */
import { notFound, TendonError } from "../../kit/errors.ts";
import type { VaultStore } from "../store/vaults.ts";

/** Throws NOT_FOUND, also for another workspace's, and VAULT_ARCHIVED. */
export async function checkVaults(
  vaults: Pick<VaultStore, "findAll">,
  vaultIds: readonly string[],
  workspaceId: string,
): Promise<void> {
  if (vaultIds.length === 0) return;
  const found = new Map((await vaults.findAll(vaultIds)).map((vault) => [vault.id, vault]));
  for (const id of vaultIds) {
    const vault = found.get(id);
    if (vault?.workspaceId !== workspaceId) throw notFound("vault", id);
    if (vault.archivedAt) throw new TendonError("VAULT_ARCHIVED", `the vault "${id}" is archived`, { id });
  }
}
