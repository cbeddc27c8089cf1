/** `/v1/files`. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { invalidField, TendonError } from "../../../../kit/errors.ts";
import {
  FileService,
  type UploadFileRequestSchema,
} from "../../../../proto/gen/tendon/v1/file_service_pb.js";
import type { ApiAnswer, ApiCall, ApiRoute } from "../api-route.ts";
import { route } from "../api-route.ts";
import { limitOf, pageOf, valuesOf } from "../list-query.ts";
import type { FormPart } from "../multipart.ts";
import { sendBytes } from "../send-bytes.ts";
import { fileJson } from "./file-json.ts";

const MOST = 1000;
/** A file, and around it little. */
const MAX_REQUEST_BYTES = 501 * 1024 * 1024;
const SECONDS = /^\d{1,9}$/;

const { method } = FileService;

export function fileRoutes(): ApiRoute[] {
  const path = "/v1/files/{file_id}";
  const one = ({ params }: ApiCall) => ({ fileId: params.file_id! });
  return [
    { ...route("POST", "/v1/files", uploadFile), isForm: true },
    route("GET", "/v1/files", listFiles),
    route("GET", path, async (call) => {
      const { file } = await call.services.call(method.getFile, one(call));
      return fileJson(file!);
    }),
    { method: "GET", path: `${path}/content`, handle: downloadFile },
    route("DELETE", path, async (call) => {
      await call.services.call(method.deleteFile, one(call));
      return { id: call.params.file_id, type: "file_deleted" };
    }),
  ];
}

async function uploadFile({ services, exchange, form: read, requestId }: ApiCall) {
  const length = Number(exchange.request.headers["content-length"] ?? 0);
  if (length > MAX_REQUEST_BYTES)
    throw new TendonError("MESSAGE_TOO_LARGE", `the body has more than ${MAX_REQUEST_BYTES} bytes`);
  const form = read({ files: 1, fields: 8 });
  try {
    const { file } = await services.upload(method.uploadFile, uploadOf(form, requestId));
    return fileJson(file!);
  } finally {
    void form.return(undefined);
  }
}

/** Fields may come before the file and after it. */
async function* uploadOf(
  form: AsyncGenerator<FormPart>,
  requestId: string,
): AsyncGenerator<MessageInitShape<typeof UploadFileRequestSchema>> {
  let expiresInSeconds = 0n;
  let hasFile = false;
  for await (const part of form) {
    if (part.kind === "field") {
      if (part.name !== "expires_in_seconds") throw invalidField(part.name, "is not a field here");
      if (!SECONDS.test(part.value)) throw invalidField(part.name, "must be a whole number of seconds");
      expiresInSeconds = BigInt(part.value);
      continue;
    }
    if (part.name !== "file") throw invalidField(part.name, "is not a field here");
    hasFile = true;
    const { mimeType, bytes } = part;
    const filename = part.filename.split(/[/\\]/).at(-1) || unnamed(mimeType);
    yield { kind: { case: "start", value: { requestId, filename, mimeType } } };
    for await (const value of bytes) yield { kind: { case: "chunk", value } };
  }
  if (!hasFile) throw invalidField("file", "is required");
  yield { kind: { case: "end", value: { expiresInSeconds } } };
}

async function listFiles({ services, query }: ApiCall) {
  const { files, nextPageToken } = await services.call(method.listFiles, {
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
    sessionId: query.get("scope_id") ?? "",
    fileIds: [...new Set(valuesOf(query, "ids"))],
  });
  return { data: files.map(fileJson), next_page: nextPageToken || null };
}

async function downloadFile({ services, params, exchange, signal }: ApiCall): Promise<ApiAnswer> {
  const fileId = params.file_id!;
  const { file } = await services.call(method.getFile, { fileId });
  const { filename, mimeType, sizeBytes } = file!;
  const content = services.stream(method.readFile, { fileId });
  const head = {
    "content-type": mimeType,
    "content-length": String(sizeBytes),
    "content-disposition": `attachment; filename*=UTF-8''${encodeURIComponent(nameOf(filename))}`,
  };
  return sendBytes(exchange, content, { head, signal });
}

/** Outputs are named by their paths. */
function nameOf(filename: string): string {
  return filename.slice(filename.lastIndexOf("/") + 1);
}

/** The names that files of these types end in. */
const ENDINGS: Readonly<Record<string, string>> = {
  "application/json": ".json",
  "application/pdf": ".pdf",
  "application/zip": ".zip",
  "image/gif": ".gif",
  "image/jpeg": ".jpg",
  "image/png": ".png",
  "image/webp": ".webp",
  "text/csv": ".csv",
  "text/html": ".html",
  "text/markdown": ".md",
  "text/plain": ".txt",
};

function unnamed(mimeType: string): string {
  return `unnamed${ENDINGS[mimeType.split(";")[0]!.trim().toLowerCase()] ?? ""}`;
}
