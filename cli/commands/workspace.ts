/** `tendon workspace`: tenants. */
import { create } from "@bufbuild/protobuf";
import { type Command, InvalidArgumentError } from "commander";
import {
  GetWorkspaceUsageResponseSchema,
  ListWorkspacesResponseSchema,
  type Workspace,
  type WorkspaceLimits,
  WorkspaceLimitsSchema,
  WorkspaceSchema,
} from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { CALL_WITHIN, onAction } from "../command.ts";
import { formatFields, formatTable } from "../table.ts";
import { usageFields } from "../usage-fields.ts";
import { parseCount, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

interface LimitOptions {
  runningSessions?: number;
  hands?: number;
  blobBytes?: number;
  retentionDays?: number;
}

export function addWorkspaceCommands(program: Command): void {
  const workspace = program.command("workspace").description("tenants, and their limits");
  workspace.addHelpText(
    "after",
    `
Examples:
  tendon workspace create acme --running-sessions 20
  tendon workspace list --json`,
  );
  const createCommand = addLimitOptions(workspace.command("create <name>").description("make a workspace"))
    .option("--tamper-evident", "hash and sign the logs of its sessions")
    .option("--request-id <id>", "makes repeating this command safe");
  onAction<LimitOptions & { tamperEvident?: boolean; requestId?: string }>(
    createCommand,
    async ({ options, args, api, output }) => {
      const limits = changedLimits(undefined, options) ?? create(WorkspaceLimitsSchema);
      const request = {
        requestId: options.requestId ?? "",
        name: String(args[0]),
        limits,
        tamperEvident: options.tamperEvident === true,
      };
      const { workspace: made } = await api.admin.createWorkspace(request, CALL_WITHIN);
      output.message(WorkspaceSchema, made!, () => workspaceText(made!));
    },
  );
  const list = addPageOptions(workspace.command("list").description("list workspaces"));
  list.option("--archived", "also archived ones");
  onAction<PageOptions & { archived?: boolean }>(list, async ({ options, api, output }) => {
    const request = { ...pageOf(options), includeArchived: options.archived === true };
    const page = await api.admin.listWorkspaces(request, CALL_WITHIN);
    const text = () => workspaceTable(page.workspaces) + nextPageNote(page);
    output.message(ListWorkspacesResponseSchema, page, text);
  });
  const get = workspace.command("get [workspace]").description("show a workspace; left out: the key's own");
  onAction(get, async ({ args, api, output }) => {
    const { workspace: found } = await api.admin.getWorkspace(
      { workspaceId: String(args[0] ?? "") },
      CALL_WITHIN,
    );
    output.message(WorkspaceSchema, found!, () => workspaceText(found!));
  });
  const usage = workspace
    .command("usage [workspace]")
    .description("what a workspace's sessions have used, erased ones included; left out: the key's own");
  onAction(usage, async ({ args, api, output }) => {
    const request = { workspaceId: String(args[0] ?? "") };
    const used = await api.admin.getWorkspaceUsage(request, CALL_WITHIN);
    output.message(GetWorkspaceUsageResponseSchema, used, () =>
      formatFields([["sessions", String(used.sessions)], ...usageFields(used.usage)]),
    );
  });
  addUpdate(workspace);
  const archive = workspace
    .command("archive <workspace>")
    .description("end a workspace: its keys stop working");
  onAction(archive, async ({ args, api, output }) => {
    const { workspace: ended } = await api.admin.archiveWorkspace(
      { workspaceId: String(args[0]) },
      CALL_WITHIN,
    );
    output.message(WorkspaceSchema, ended!, () => workspaceText(ended!));
  });
}

function addUpdate(workspace: Command): void {
  const command = addLimitOptions(
    workspace.command("update <workspace>").description("change a workspace; what is left out stays"),
  )
    .option("--name <name>", "new name")
    .option(
      "--tamper-evident <on|off>",
      "whether the logs of sessions made from now on are hashed and signed",
      parseOnOff,
    );
  onAction<LimitOptions & { name?: string; tamperEvident?: boolean }>(
    command,
    async ({ options, args, api, output }) => {
      const workspaceId = String(args[0]);
      const { workspace: before } = await api.admin.getWorkspace({ workspaceId }, CALL_WITHIN);
      const limits = changedLimits(before?.limits, options);
      const request = {
        workspaceId,
        ...(options.name === undefined ? {} : { name: options.name }),
        ...(limits === undefined ? {} : { limits }),
        ...(options.tamperEvident === undefined ? {} : { tamperEvident: options.tamperEvident }),
      };
      const { workspace: after } = await api.admin.updateWorkspace(request, CALL_WITHIN);
      output.message(WorkspaceSchema, after!, () => workspaceText(after!));
    },
  );
}

function addLimitOptions(command: Command): Command {
  const count = parseCount(0, 2 ** 31 - 1);
  return command
    .option("--running-sessions <n>", "sessions that run at a time; 0 means no limit", count)
    .option("--hands <n>", "hands that live at a time; 0 means no limit", count)
    .option(
      "--blob-bytes <n>",
      "bytes of stored files; 0 means no limit",
      parseCount(0, Number.MAX_SAFE_INTEGER),
    )
    .option("--retention-days <n>", "days after which ended sessions are erased; 0 means never", count);
}

/** The limits with the options' changes, or undefined when there are none. */
function changedLimits(
  before: WorkspaceLimits | undefined,
  options: LimitOptions,
): WorkspaceLimits | undefined {
  const { runningSessions, hands, blobBytes, retentionDays } = options;
  if ([runningSessions, hands, blobBytes, retentionDays].every((limit) => limit === undefined))
    return undefined;
  return create(WorkspaceLimitsSchema, {
    runningSessions: runningSessions ?? before?.runningSessions ?? 0,
    hands: hands ?? before?.hands ?? 0,
    blobBytes: blobBytes === undefined ? (before?.blobBytes ?? 0n) : BigInt(blobBytes),
    retentionDays: retentionDays ?? before?.retentionDays ?? 0,
  });
}

function workspaceTable(workspaces: readonly Workspace[]): string {
  const rows = workspaces.map(({ id, name, createdAt, archivedAt }) => [
    id,
    name,
    archivedAt === undefined ? timeText(createdAt) : `${timeText(createdAt)} archived`,
  ]);
  return formatTable(["ID", "NAME", "CREATED"], rows);
}

function parseOnOff(word: string): boolean {
  if (word === "on" || word === "off") return word === "on";
  throw new InvalidArgumentError("It must be on or off.");
}

function workspaceText({ id, name, limits, tamperEvident, createdAt, archivedAt }: Workspace): string {
  const limit = (value: number | bigint | undefined) => (value ? String(value) : "");
  return formatFields([
    ["id", id],
    ["name", name],
    ["running sessions", limit(limits?.runningSessions)],
    ["hands", limit(limits?.hands)],
    ["blob bytes", limit(limits?.blobBytes)],
    ["retention days", limit(limits?.retentionDays)],
    ["tamper-evident", tamperEvident ? "yes" : ""],
    ["created", timeText(createdAt)],
    ["archived", timeText(archivedAt)],
  ]);
}
