/** `tendon vault`: places for credentials. */
import type { Command } from "commander";
import {
  ListVaultsResponseSchema,
  type Vault,
  VaultSchema,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { CALL_WITHIN, onAction } from "../command.ts";
import { formatFields, formatTable } from "../table.ts";
import { pairsText, parsePair, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";
import { addVaultConnect } from "./vault-connect.ts";

interface VaultOptions {
  name?: string;
  metadata?: Record<string, string>;
  requestId?: string;
}

export function addVaultCommands(program: Command): void {
  const vault = program
    .command("vault")
    .description("places for credentials; sessions name those that they may use");
  vault.addHelpText(
    "after",
    `
Examples:
  tendon vault create "my tokens"
  tendon vault connect vlt_01… https://mcp.example.com/mcp
  tendon credential create vlt_01… --bearer https://mcp.example.com/mcp <token.txt
  tendon session create --vault vlt_01… --message "…"`,
  );
  const make = vault
    .command("create <name>")
    .description("make a vault")
    .option("--metadata <name=value>", "a pair; may be given several times", parsePair)
    .option("--request-id <id>", "makes repeating this command safe");
  onAction<VaultOptions>(make, async ({ options, args, api, output }) => {
    const { metadata = {}, requestId = "" } = options;
    const request = { displayName: String(args[0]), metadata, requestId };
    const { vault: made } = await api.vaults.createVault(request, CALL_WITHIN);
    output.message(VaultSchema, made!, () => vaultText(made!));
  });
  const list = addPageOptions(vault.command("list").description("list vaults"));
  list.option("--archived", "also archived ones");
  onAction<PageOptions & { archived?: boolean }>(list, async ({ options, api, output }) => {
    const request = { ...pageOf(options), includeArchived: options.archived === true };
    const page = await api.vaults.listVaults(request, CALL_WITHIN);
    output.message(ListVaultsResponseSchema, page, () => vaultTable(page.vaults) + nextPageNote(page));
  });
  const get = vault.command("get <vault>").description("show a vault");
  onAction(get, async ({ args, api, output }) => {
    const { vault: found } = await api.vaults.getVault({ vaultId: String(args[0]) }, CALL_WITHIN);
    output.message(VaultSchema, found!, () => vaultText(found!));
  });
  addVaultConnect(vault);
  addChanges(vault);
}

function addChanges(vault: Command): void {
  const update = vault
    .command("update <vault>")
    .description("change a vault; what is left out stays")
    .option("--name <name>", "new name")
    .option(
      "--metadata <name=value>",
      "a pair, without a value to delete it; may be given several times",
      parsePair,
    );
  onAction<VaultOptions>(update, async ({ options, args, api, output }) => {
    const { name, metadata = {} } = options;
    const request = { vaultId: String(args[0]), metadata, ...(name !== undefined && { displayName: name }) };
    const { vault: changed } = await api.vaults.updateVault(request, CALL_WITHIN);
    output.message(VaultSchema, changed!, () => vaultText(changed!));
  });
  const archive = vault
    .command("archive <vault>")
    .description("end a vault: its secrets are erased, the records stay");
  onAction(archive, async ({ args, api, output }) => {
    const { vault: ended } = await api.vaults.archiveVault({ vaultId: String(args[0]) }, CALL_WITHIN);
    output.message(VaultSchema, ended!, () => vaultText(ended!));
  });
  const remove = vault.command("delete <vault>").description("erase a vault and its credentials");
  onAction(remove, async ({ args, api, output }) => {
    const vaultId = String(args[0]);
    await api.vaults.deleteVault({ vaultId }, CALL_WITHIN);
    output.value({ deleted: vaultId }, () => `${vaultId} is deleted.`);
  });
}

function vaultTable(vaults: readonly Vault[]): string {
  const rows = vaults.map(({ id, displayName, createdAt, archivedAt }) => [
    id,
    displayName,
    timeText(createdAt),
    archivedAt ? "archived" : "",
  ]);
  return formatTable(["ID", "NAME", "CREATED", ""], rows);
}

function vaultText({ id, workspaceId, displayName, metadata, createdAt, archivedAt }: Vault): string {
  return formatFields([
    ["id", id],
    ["name", displayName],
    ["workspace", workspaceId],
    ["metadata", pairsText(metadata)],
    ["created", timeText(createdAt)],
    ["archived", timeText(archivedAt)],
  ]);
}
