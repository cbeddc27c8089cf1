/** `tendon key`: API keys. */
import { create } from "@bufbuild/protobuf";
import { type Command, Option } from "commander";
import { systemClock } from "../../kit/clock.ts";
import { StartupError } from "../../kit/program.ts";
import {
  type ApiKey,
  ApiKeySchema,
  CreateApiKeyRequestSchema,
  CreateApiKeyResponseSchema,
  ListApiKeysResponseSchema,
  Role,
  RoleSchema,
} from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { CALL_WITHIN, EXIT_USAGE, onAction } from "../command.ts";
import { TENDON } from "../command-name.ts";
import { withSecretFile } from "../secret-file.ts";
import { formatFields, formatTable } from "../table.ts";
import { enumWord, enumWords, parseDuration, parseEnum, timestampIn, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

const YEARS_10_MS = 10 * 365 * 24 * 3_600_000;

export function addKeyCommands(program: Command): void {
  const key = program.command("key").description("API keys: who may call, and as what");
  key.addHelpText(
    "after",
    `
Examples:
  tendon key create laptop --role client --workspace wrkspc_01…
  tendon key revoke apikey_01…`,
  );
  addCreate(key);
  const list = addPageOptions(key.command("list").description("list keys, without the keys themselves"));
  list.option("--revoked", "also revoked ones");
  onAction<PageOptions & { revoked?: boolean }>(list, async ({ options, api, output }) => {
    const request = { ...pageOf(options), includeRevoked: options.revoked === true };
    const page = await api.admin.listApiKeys(request, CALL_WITHIN);
    output.message(ListApiKeysResponseSchema, page, () => keyTable(page.apiKeys) + nextPageNote(page));
  });
  const revoke = key.command("revoke <key>").description("end a key; the id, not the key itself");
  onAction(revoke, async ({ args, api, output }) => {
    const { apiKey } = await api.admin.revokeApiKey({ apiKeyId: String(args[0]) }, CALL_WITHIN);
    output.message(ApiKeySchema, apiKey!, () => keyText(apiKey!));
  });
}

function addCreate(key: Command): void {
  const command = key
    .command("create [name]")
    .description("make a key; it is shown this once")
    .option("--name <name>", "the same as the argument")
    .addOption(
      new Option("--role <role>", enumWords(RoleSchema).join(", "))
        .argParser(parseEnum<Role>(RoleSchema))
        .default(Role.CLIENT, enumWord(RoleSchema, Role.CLIENT)),
    )
    .option("--workspace <id>", "workspace that it is bound to; left out: the caller's own")
    .option("--expires-in <duration>", "such as 30d; left out: never", parseDuration(YEARS_10_MS))
    .option("--out <file>", "write the key to this new file, with mode 0600, instead of showing it")
    .addHelpText(
      "after",
      "\nExamples:\n  tendon key create laptop --workspace wrkspc_01…\n  tendon key create harness-2 --role harness --out harness.key",
    );
  type Options = { name?: string; role: Role; workspace?: string; expiresIn?: number; out?: string };
  onAction<Options>(command, async ({ options, args, api, output }) => {
    const name = (args[0] as string | undefined) ?? options.name;
    if (name === undefined)
      throw new StartupError(`the key needs a name: ${TENDON} key create NAME`, EXIT_USAGE);
    const request = create(CreateApiKeyRequestSchema, {
      name,
      role: options.role,
      workspaceId: options.workspace ?? "",
    });
    if (options.expiresIn !== undefined)
      request.expiresAt = timestampIn(options.expiresIn, systemClock.nowMs());
    const { out } = options;
    const make = () => api.admin.createApiKey(request, CALL_WITHIN);
    const answer = out === undefined ? await make() : await withSecretFile(out, make);
    output.message(CreateApiKeyResponseSchema, answer, () => {
      if (out !== undefined) return `${keyText(answer.apiKey!)}\nThe key is in ${out} alone.`;
      return `${keyText(answer.apiKey!)}\nkey  ${answer.secret}\nKeep it now: it is not shown again.`;
    });
  });
}

function keyTable(keys: readonly ApiKey[]): string {
  const rows = keys.map(({ id, name, role, workspaceId, hint, lastUsedAt, expiresAt, revokedAt }) => [
    id,
    name,
    enumWord(RoleSchema, role),
    workspaceId || "all",
    hint,
    timeText(lastUsedAt) || "never",
    revokedAt ? "revoked" : expiresAt ? `until ${timeText(expiresAt)}` : "",
  ]);
  return formatTable(["ID", "NAME", "ROLE", "WORKSPACE", "KEY", "LAST USED", ""], rows);
}

function keyText({ id, name, role, workspaceId, createdAt, expiresAt, revokedAt }: ApiKey): string {
  return formatFields([
    ["id", id],
    ["name", name],
    ["role", enumWord(RoleSchema, role)],
    ["workspace", workspaceId || "all"],
    ["created", timeText(createdAt)],
    ["expires", timeText(expiresAt) || "never"],
    ["revoked", timeText(revokedAt)],
  ]);
}
