/** `tendon file`: stored bytes with a name, for sessions and from them. */
import { stat } from "node:fs/promises";
import { basename } from "node:path";
import type { Command } from "commander";
import { mediaTypeOf } from "../../kit/media-type.ts";
import { StartupError } from "../../kit/program.ts";
import { type File, FileSchema } from "../../proto/gen/tendon/v1/file_pb.js";
import {
  DeleteFileResponseSchema,
  ListFilesResponseSchema,
} from "../../proto/gen/tendon/v1/file_service_pb.js";
import { CALL_WITHIN, EXIT_USAGE, onAction } from "../command.ts";
import { fileChunks } from "../local-tree.ts";
import { sendAll } from "../send-all.ts";
import { writeTo } from "../stored-bytes.ts";
import { formatFields, formatTable } from "../table.ts";
import { parseDuration, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

const MAX_AGE_MS = 90 * 24 * 3_600_000;

export function addFileCommands(program: Command): void {
  const file = program.command("file").description("files: stored bytes, for sessions and from them");
  file.addHelpText(
    "after",
    `
Examples:
  tendon file upload data.csv
  tendon file list --session sesn_01…
  tendon file download file_01… .`,
  );
  addUpload(file);
  addReading(file);
  const erase = file
    .command("delete <file>")
    .description("delete a file; copies that sessions were given stay");
  onAction(erase, async ({ args, api, output }) => {
    const answer = await api.files.deleteFile({ fileId: String(args[0]) }, CALL_WITHIN);
    output.message(DeleteFileResponseSchema, answer, () => "the file is gone");
  });
}

interface Upload {
  name?: string;
  mimeType?: string;
  expires?: number;
  requestId?: string;
}

function addUpload(file: Command): void {
  const upload = file
    .command("upload <path>")
    .description("store a file of this machine, at most 500 MiB")
    .option("--name <name>", "its name there; default is that here")
    .option("--mime-type <type>", "what it is, such as text/csv; default follows from the end of its name")
    .option("--expires <duration>", "deleted by itself after so long: 1h to 90d", parseDuration(MAX_AGE_MS))
    .option("--request-id <id>", "makes repeating this command safe");
  onAction<Upload>(upload, async ({ options, args, api, output }) => {
    const path = String(args[0]);
    const found = await stat(path).catch(() => undefined);
    if (found?.isFile() !== true) throw new StartupError(`there is no file ${path}`, EXIT_USAGE);
    const { name = basename(path), expires = 0, requestId = "" } = options;
    const { mimeType = mediaTypeOf(name) } = options;
    const expiresInSeconds = BigInt(Math.ceil(expires / 1_000));
    async function* messages() {
      yield { kind: { case: "start" as const, value: { filename: name, mimeType, requestId } } };
      for await (const value of fileChunks(path)) yield { kind: { case: "chunk" as const, value } };
      yield { kind: { case: "end" as const, value: { expiresInSeconds } } };
    }
    const { file: stored } = await sendAll(api.files.uploadFile(), messages());
    output.message(FileSchema, stored!, () => fileText(stored!));
  });
}

function addReading(file: Command): void {
  const list = addPageOptions(file.command("list").description("list files, newest first"));
  list.option("--session <session>", "only those of this session, its copies and what it left");
  onAction<PageOptions & { session?: string }>(list, async ({ options, api, output }) => {
    const request = { ...pageOf(options), sessionId: options.session ?? "" };
    const page = await api.files.listFiles(request, CALL_WITHIN);
    output.message(ListFilesResponseSchema, page, () => fileTable(page.files) + nextPageNote(page));
  });
  const get = file.command("get <file>").description("show what a file is");
  onAction(get, async ({ args, api, output }) => {
    const { file: found } = await api.files.getFile({ fileId: String(args[0]) }, CALL_WITHIN);
    output.message(FileSchema, found!, () => fileText(found!));
  });
  const download = file
    .command("download <file> [to]")
    .description('write a file\'s bytes into a file or folder here; "-" is standard output');
  onAction(download, async ({ args, api, output }) => {
    const fileId = String(args[0]);
    const { file: found } = await api.files.getFile({ fileId }, CALL_WITHIN);
    const chunks = api.files.readFile({ fileId });
    const to = await writeTo(String(args[1] ?? "."), found!.filename, chunks);
    if (to !== "-") output.value({ file_id: fileId, to }, () => to);
  });
}

function fileText(file: File): string {
  return formatFields([
    ["id", file.id],
    ["name", file.filename],
    ["type", file.mimeType],
    ["bytes", String(file.sizeBytes)],
    ["sha256", file.sha256],
    ["session", file.sessionId],
    ["made", timeText(file.createdAt)],
    ["until", file.expiresAt === undefined ? "" : timeText(file.expiresAt)],
  ]);
}

function fileTable(files: readonly File[]): string {
  return formatTable(
    ["id", "name", "bytes", "session", "made"],
    files.map(({ id, filename, sizeBytes, sessionId, createdAt }) => [
      id,
      filename,
      String(sizeBytes),
      sessionId,
      timeText(createdAt),
    ]),
  );
}
