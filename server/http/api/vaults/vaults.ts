/** `/v1/vaults`. */
import { type Vault, VaultService } from "../../../../proto/gen/tendon/v1/vault_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { flagOf, limitOf, pageOf } from "../list-query.ts";
import { metadataPatch, newMetadata } from "../metadata.ts";
import { timeJson } from "../time-json.ts";

const MOST = 100;

const { method } = VaultService;

export function vaultRoutes(): ApiRoute[] {
  const path = "/v1/vaults/{vault_id}";
  return [
    route("POST", "/v1/vaults", async ({ services, body: { fields }, requestId }) => {
      fields.only("display_name", "metadata");
      const request = {
        requestId,
        displayName: fields.requiredText("display_name"),
        metadata: newMetadata(fields),
      };
      return vaultJson((await services.call(method.createVault, request)).vault!);
    }),
    route("GET", "/v1/vaults", listVaults),
    route("GET", path, async ({ services, params }) =>
      vaultJson((await services.call(method.getVault, { vaultId: params.vault_id! })).vault!),
    ),
    route("POST", path, async ({ services, params, body: { fields } }) => {
      fields.only("display_name", "metadata");
      const displayName = fields.changedText("display_name");
      const request = {
        vaultId: params.vault_id!,
        metadata: metadataPatch(fields),
        ...(displayName !== undefined && { displayName }),
      };
      return vaultJson((await services.call(method.updateVault, request)).vault!);
    }),
    route("DELETE", path, async ({ services, params }) => {
      await services.call(method.deleteVault, { vaultId: params.vault_id! });
      return { id: params.vault_id, type: "vault_deleted" };
    }),
    route("POST", `${path}/archive`, async ({ services, params }) =>
      vaultJson((await services.call(method.archiveVault, { vaultId: params.vault_id! })).vault!),
    ),
  ];
}

async function listVaults({ services, query }: ApiCall) {
  const { vaults, nextPageToken } = await services.call(method.listVaults, {
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
    includeArchived: flagOf(query, "include_archived"),
  });
  return { data: vaults.map(vaultJson), next_page: nextPageToken || null };
}

function vaultJson({ id, displayName, metadata, createdAt, updatedAt, archivedAt }: Vault) {
  return {
    type: "vault",
    id,
    display_name: displayName,
    metadata,
    created_at: timeJson(createdAt),
    updated_at: timeJson(updatedAt),
    archived_at: timeJson(archivedAt),
  };
}
