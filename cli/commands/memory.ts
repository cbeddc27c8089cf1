/** `tendon memory`: stores of texts that outlive sessions. */
import type { Command } from "commander";
import { StartupError } from "../../kit/program.ts";
import {
  type Memory,
  MemoryOperationSchema,
  MemorySchema,
  type MemoryStore,
  MemoryStoreSchema,
  type MemoryVersion,
  MemoryVersionSchema,
  MemoryView,
} from "../../proto/gen/tendon/v1/memory_pb.js";
import {
  DeleteMemoryResponseSchema,
  DeleteMemoryStoreResponseSchema,
  ListMemoriesResponseSchema,
  ListMemoryStoresResponseSchema,
  ListMemoryVersionsResponseSchema,
  type MemoryEntry,
} from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { CALL_WITHIN, EXIT_USAGE, onAction } from "../command.ts";
import { memoryStoreIdOf } from "../named.ts";
import { readText } from "../read-file.ts";
import { formatFields, formatTable } from "../table.ts";
import { enumWord, pairsText, parsePair, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

export function addMemoryCommands(program: Command): void {
  const memory = program
    .command("memory")
    .description("memory stores: texts that outlive sessions, with their versions");
  memory.addHelpText(
    "after",
    `
A store is named by its id, or by a name that only one has.

Examples:
  tendon memory create --name "Team notes"
  tendon memory put "Team notes" /build.md --file build.md
  tendon session create --memory "Team notes" --message "how do we build?"`,
  );
  addStoreCommands(memory);
  addReading(memory);
  addWriting(memory);
  addVersions(memory);
}

function addStoreCommands(memory: Command): void {
  const create = memory
    .command("create")
    .description("make a store")
    .requiredOption("--name <name>", "for people and models; not unique")
    .option("--description <text>", "what it is for")
    .option("--metadata <name=value>", "may be given several times", parsePair)
    .option("--request-id <id>", "makes repeating this command safe");
  type Create = { name: string; description?: string; metadata?: Record<string, string>; requestId?: string };
  onAction<Create>(create, async ({ options, api, output }) => {
    const { name, description = "", metadata = {}, requestId = "" } = options;
    const request = { name, description, metadata, requestId };
    const { memoryStore } = await api.memory.createMemoryStore(request, CALL_WITHIN);
    output.message(MemoryStoreSchema, memoryStore!, () => storeText(memoryStore!));
  });
  const stores = addPageOptions(memory.command("stores").description("list stores, newest first"));
  stores.option("--archived", "also archived ones");
  onAction<PageOptions & { archived?: boolean }>(stores, async ({ options, api, output }) => {
    const request = { ...pageOf(options), includeArchived: options.archived === true };
    const page = await api.memory.listMemoryStores(request, CALL_WITHIN);
    output.message(
      ListMemoryStoresResponseSchema,
      page,
      () => storeTable(page.memoryStores) + nextPageNote(page),
    );
  });
  const show = memory.command("show <store>").description("show a store");
  onAction(show, async ({ args, api, output }) => {
    const memoryStoreId = await memoryStoreIdOf(api.memory, String(args[0]));
    const { memoryStore } = await api.memory.getMemoryStore({ memoryStoreId }, CALL_WITHIN);
    output.message(MemoryStoreSchema, memoryStore!, () => storeText(memoryStore!));
  });
  const archive = memory
    .command("archive <store>")
    .description("end the writing; what is there can still be read");
  onAction(archive, async ({ args, api, output }) => {
    const memoryStoreId = await memoryStoreIdOf(api.memory, String(args[0]));
    const { memoryStore } = await api.memory.archiveMemoryStore({ memoryStoreId }, CALL_WITHIN);
    output.message(MemoryStoreSchema, memoryStore!, () => storeText(memoryStore!));
  });
  const erase = memory
    .command("delete <store>")
    .description("erase a store, with all that it holds and held");
  onAction(erase, async ({ args, api, output }) => {
    const answer = await api.memory.deleteMemoryStore({ memoryStoreId: String(args[0]) }, CALL_WITHIN);
    output.message(DeleteMemoryStoreResponseSchema, answer, () => "the store is gone");
  });
}

function addReading(memory: Command): void {
  const list = addPageOptions(
    memory.command("list <store> [directory]").description("list memories by path"),
  );
  list.option("--all", "also what is in directories below");
  onAction<PageOptions & { all?: boolean }>(list, async ({ options, args, api, output }) => {
    const memoryStoreId = await memoryStoreIdOf(api.memory, String(args[0]));
    const directory = args[1] === undefined ? "" : String(args[1]).replace(/\/*$/, "/");
    const request = { ...pageOf(options), memoryStoreId, pathPrefix: directory, depth: options.all ? 0 : 1 };
    const page = await api.memory.listMemories(request, CALL_WITHIN);
    output.message(ListMemoriesResponseSchema, page, () => entryTable(page.entries) + nextPageNote(page));
  });
  const get = memory.command("get <store> <path>").description("print a memory's text as it is");
  onAction(get, async ({ args, api, output }) => {
    const memoryStoreId = await memoryStoreIdOf(api.memory, String(args[0]));
    const answer = await api.memory.getMemory({ memoryStoreId, path: String(args[1]) }, CALL_WITHIN);
    if (output.json) output.message(MemorySchema, answer.memory!, () => "");
    else output.write(answer.memory?.content ?? "");
  });
}

function addWriting(memory: Command): void {
  const put = memory
    .command("put <store> <path> [text]")
    .description("write a memory: makes it, or changes what is there")
    .option("--file <file>", 'take the text from this file; "-" is standard input')
    .option("--if-sha256 <digest>", "only if the memory has this text now; lower-case hex")
    .option("--if-new", "only if there is no such memory")
    .option("--request-id <id>", "makes repeating this command safe");
  type Put = { file?: string; ifSha256?: string; ifNew?: boolean; requestId?: string };
  onAction<Put>(put, async ({ options, args, api, output }) => {
    const { file, ifNew = false, ifSha256 = "", requestId = "" } = options;
    const memoryStoreId = await memoryStoreIdOf(api.memory, String(args[0]));
    const path = String(args[1]);
    const content = textOf(args[2], file);
    const target = { memoryStoreId, path, content, requestId };
    const isThere =
      !ifNew &&
      (ifSha256 !== "" ||
        (await exists(() =>
          api.memory.getMemory({ memoryStoreId, path, view: MemoryView.BASIC }, CALL_WITHIN),
        )));
    const answer = isThere
      ? await api.memory.updateMemory({ ...target, expectedContentSha256: ifSha256 }, CALL_WITHIN)
      : await api.memory.createMemory(target, CALL_WITHIN);
    output.message(MemorySchema, answer.memory!, () => memoryText(answer.memory!));
  });
  const rename = memory.command("rename <store> <path> <new-path>").description("give a memory another path");
  onAction(rename, async ({ args, api, output }) => {
    const memoryStoreId = await memoryStoreIdOf(api.memory, String(args[0]));
    const change = { memoryStoreId, path: String(args[1]), newPath: String(args[2]) };
    const { memory: renamed } = await api.memory.updateMemory(change, CALL_WITHIN);
    output.message(MemorySchema, renamed!, () => memoryText(renamed!));
  });
  const remove = memory
    .command("remove <store> <path>")
    .description("delete a memory; its versions stay for a while");
  onAction(remove, async ({ args, api, output }) => {
    const memoryStoreId = await memoryStoreIdOf(api.memory, String(args[0]));
    const answer = await api.memory.deleteMemory({ memoryStoreId, path: String(args[1]) }, CALL_WITHIN);
    output.message(DeleteMemoryResponseSchema, answer, () => "the memory is gone");
  });
}

function addVersions(memory: Command): void {
  const versions = addPageOptions(
    memory
      .command("versions <store> [path]")
      .description("list versions, newest first; of a memory that is there, or of all"),
  )
    .option("--memory <id>", "only of this memory, which may be gone")
    .option("--session <session>", "only those by this session");
  type Versions = PageOptions & { memory?: string; session?: string };
  onAction<Versions>(versions, async ({ options, args, api, output }) => {
    const memoryStoreId = await memoryStoreIdOf(api.memory, String(args[0]));
    const found =
      args[1] === undefined
        ? undefined
        : await api.memory.getMemory(
            { memoryStoreId, path: String(args[1]), view: MemoryView.BASIC },
            CALL_WITHIN,
          );
    const memoryId = found?.memory?.id ?? options.memory ?? "";
    const request = { ...pageOf(options), memoryStoreId, memoryId, sessionId: options.session ?? "" };
    const page = await api.memory.listMemoryVersions(request, CALL_WITHIN);
    output.message(
      ListMemoryVersionsResponseSchema,
      page,
      () => versionTable(page.memoryVersions) + nextPageNote(page),
    );
  });
  const version = memory
    .command("version <store> <version>")
    .description("print the text of a version as it was");
  onAction(version, async ({ args, api, output }) => {
    const memoryStoreId = await memoryStoreIdOf(api.memory, String(args[0]));
    const request = { memoryStoreId, memoryVersionId: String(args[1]) };
    const { memoryVersion } = await api.memory.getMemoryVersion(request, CALL_WITHIN);
    if (output.json) output.message(MemoryVersionSchema, memoryVersion!, () => "");
    else output.write(memoryVersion?.content ?? "");
  });
  const redact = memory
    .command("redact <store> <version>")
    .description("erase what a version says, for good");
  onAction(redact, async ({ args, api, output }) => {
    const memoryStoreId = await memoryStoreIdOf(api.memory, String(args[0]));
    const request = { memoryStoreId, memoryVersionId: String(args[1]) };
    const { memoryVersion } = await api.memory.redactMemoryVersion(request, CALL_WITHIN);
    output.message(MemoryVersionSchema, memoryVersion!, () => versionTable([memoryVersion!]));
  });
}

function textOf(text: unknown, file: string | undefined): string {
  if ((text === undefined) === (file === undefined))
    throw new StartupError("give the text, or a file with --file", EXIT_USAGE);
  return file === undefined ? String(text) : readText(file);
}

async function exists(ask: () => PromiseLike<unknown>): Promise<boolean> {
  try {
    await ask();
    return true;
  } catch (error) {
    if ((error as { reason?: string }).reason === "NOT_FOUND") return false;
    throw error;
  }
}

function storeTable(stores: readonly MemoryStore[]): string {
  const rows = stores.map(({ id, name, memoryCount, contentBytes, createdAt, archivedAt }) => [
    id,
    name,
    String(memoryCount),
    String(contentBytes),
    archivedAt === undefined ? timeText(createdAt) : `${timeText(createdAt)} archived`,
  ]);
  return formatTable(["ID", "NAME", "MEMORIES", "BYTES", "CREATED"], rows);
}

function storeText(store: MemoryStore): string {
  return formatFields([
    ["id", store.id],
    ["name", store.name],
    ["description", store.description],
    ["memories", String(store.memoryCount)],
    ["bytes", `${store.contentBytes}, earlier versions included`],
    ["metadata", pairsText(store.metadata)],
    ["created", timeText(store.createdAt)],
    ["archived", timeText(store.archivedAt)],
  ]);
}

function entryTable(entries: readonly MemoryEntry[]): string {
  const rows = entries.map(({ kind }) =>
    kind.case === "memory"
      ? [kind.value.path, String(kind.value.contentSizeBytes), timeText(kind.value.updatedAt), kind.value.id]
      : [kind.value ?? "", "", "", ""],
  );
  return formatTable(["PATH", "BYTES", "UPDATED", "ID"], rows);
}

function memoryText(memory: Memory): string {
  return formatFields([
    ["id", memory.id],
    ["path", memory.path],
    ["version", memory.memoryVersionId],
    ["sha256", memory.contentSha256],
    ["bytes", String(memory.contentSizeBytes)],
    ["updated", timeText(memory.updatedAt)],
  ]);
}

function versionTable(versions: readonly MemoryVersion[]): string {
  const rows = versions.map((version) => [
    version.id,
    enumWord(MemoryOperationSchema, version.operation),
    version.redactedAt === undefined ? (version.path ?? "") : "(redacted)",
    version.contentSizeBytes === undefined ? "" : String(version.contentSizeBytes),
    version.createdBy?.kind.value ?? "",
    timeText(version.createdAt),
  ]);
  return formatTable(["ID", "WHAT", "PATH", "BYTES", "BY", "AT"], rows);
}
