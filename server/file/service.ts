/** FileService. Bytes are passed on at the pace of the slower side; no file is ever held as a whole. */

import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { Clock } from "../../kit/clock.ts";
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNul, refuseNulIn } from "../../kit/nul.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import type { File } from "../../proto/gen/tendon/v1/file_pb.js";
import type {
  DeleteFileRequest,
  FileService,
  GetFileRequest,
  ListFilesRequest,
  ReadFileRequest,
  UploadFileRequest,
} from "../../proto/gen/tendon/v1/file_service_pb.js";

import { actorOf, maySee, type Principal, principalOf, scopeOf, workspaceOf } from "../ports/principal.ts";
import type { UploadedEnd } from "../store/files.ts";
import type { Cursor } from "../store/page.ts";
import type { Store } from "../store/store.ts";
import { checkExpiry, checkFilename, fileExpired, MAX_FILE_BYTES, mimeTypeOf } from "./rules.ts";

export interface FileServiceDeps {
  readonly store: Pick<Store, "files" | "blobs">;
  readonly defaultWorkspaceId: string;
  readonly clock: Clock;
}

const DEFAULT_PAGE = 20;

export class FileServiceHandler implements ServiceImplementation<typeof FileService> {
  private readonly deps: FileServiceDeps;

  constructor(deps: FileServiceDeps) {
    this.deps = deps;
  }

  async uploadFile(requests: AsyncIterable<UploadFileRequest>, context: RpcContext) {
    const iterator = requests[Symbol.asyncIterator]();
    const first = await iterator.next();
    const kind = first.done ? undefined : first.value.kind;
    if (kind?.case !== "start") throw invalidField("start", "must be the first message");
    const { requestId, filename } = kind.value;
    refuseNul(requestId, "start.request_id");
    checkFilename(filename, "start.filename");
    const mimeType = mimeTypeOf(kind.value.mimeType, "start.mime_type");
    const upload = new Upload(iterator);
    const file = await this.deps.store.files.create({
      fileId: newId("file"),
      workspaceId: workspaceOf(principalOf(context), this.deps.defaultWorkspaceId),
      filename,
      mimeType,
      bytes: upload.bytes(),
      end: () => upload.end,
      maxBytes: MAX_FILE_BYTES,
      requestId,
    });
    return { file };
  }

  async getFile({ fileId }: GetFileRequest, context: RpcContext) {
    return { file: await this.find(fileId, principalOf(context)) };
  }

  async listFiles(request: ListFilesRequest, context: RpcContext) {
    const { fileIds, sessionId, pageSize, pageToken } = request;
    refuseNulIn({ fileIds, sessionId });
    const workspaceId = scopeOf(principalOf(context));
    const { files } = this.deps.store;
    if (fileIds.length > 0) {
      if (pageSize !== 0 || pageToken !== "")
        throw invalidField("file_ids", "makes one page, which has no size and no cursor");
      const found = await files.findAll(fileIds, workspaceId);
      const isWanted = (file: File) => sessionId === "" || file.sessionId === sessionId;
      return { files: found.filter(isWanted), nextPageToken: "" };
    }
    const query: PageQuery = ["files", workspaceId, sessionId];
    const after = decodePageToken(query, pageToken, 2) as Cursor | undefined;
    const page = { size: pageSize || DEFAULT_PAGE, after };
    const { items, next } = await files.list({ workspaceId, sessionId, page });
    return { files: items, nextPageToken: encodePageToken(query, next) };
  }

  async *readFile({ fileId, offsetBytes }: ReadFileRequest, context: RpcContext) {
    const { workspaceId, sha256, sizeBytes } = await this.find(fileId, principalOf(context));
    if (offsetBytes > sizeBytes)
      throw new TendonError("RESYNC", `offset_bytes: the file has ${sizeBytes} bytes`, {
        field: "offset_bytes",
      });
    const request = { workspaceId, sha256, offsetBytes: Number(offsetBytes) };
    for await (const chunk of this.deps.store.blobs.read(request)) yield { chunk };
  }

  async deleteFile({ fileId }: DeleteFileRequest, context: RpcContext) {
    const principal = principalOf(context);
    const file = await this.find(fileId, principal);
    if (file.sessionId !== "" && !file.isOutput)
      throw invalidField("file_id", `the session ${file.sessionId} was given it; remove it from the session`);
    const audit = { actor: actorOf(principal), action: "file.delete", subject: fileId };
    if (!(await this.deps.store.files.delete(fileId, scopeOf(principal), audit)))
      throw notFound("file", fileId);
    return {};
  }

  private async find(fileId: string, principal: Principal): Promise<File> {
    const file = fileId.includes("\0") ? undefined : await this.deps.store.files.find(fileId);
    if (file === undefined || !maySee(principal, file.workspaceId)) throw notFound("file", fileId);
    if (file.expiresAt !== undefined && timestampMs(file.expiresAt) <= this.deps.clock.nowMs())
      throw fileExpired(fileId);
    return file;
  }
}

/** The rest of an upload's stream: bytes, then one end. */
class Upload {
  private readonly messages: AsyncIterator<UploadFileRequest>;
  private ended: UploadedEnd | undefined;

  constructor(messages: AsyncIterator<UploadFileRequest>) {
    this.messages = messages;
  }

  async *bytes(): AsyncGenerator<Uint8Array> {
    for (;;) {
      const next = await this.messages.next();
      const kind = next.done ? undefined : next.value.kind;
      if (kind === undefined)
        throw new TendonError("CANCELLED", "the stream broke off before the message that ends it");
      if (kind.case === "chunk") yield kind.value;
      else if (kind.case === "end") {
        const expiresInSeconds = Number(kind.value.expiresInSeconds);
        checkExpiry(expiresInSeconds, "end.expires_in_seconds");
        this.ended = { sha256: kind.value.sha256, expiresInSeconds };
        return;
      } else throw invalidField("kind", "after the start come bytes, and then the end");
    }
  }

  get end(): UploadedEnd {
    if (this.ended === undefined) throw new Error("the upload has not ended");
    return this.ended;
  }
}
