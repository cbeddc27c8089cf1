/**
 * Files that clients name as the source of an image or a document. Their bytes are put beside the event, for brains: the log
 * stands by itself whatever becomes of the file, and its forks have them too. The payload stays as it was sent.
 */

import { type ByteBudget, checkBytes, MAX_CALL_BYTES } from "../../kit/byte-budget.ts";
import { invalidField } from "../../kit/errors.ts";
import { MAX_EVENT_BYTES } from "../../kit/limits.ts";
import type { FileAttachments } from "../ports/files.ts";
import type { NewEvent } from "../store/events.ts";
import { type GivenContent, givenContent } from "./given-content.ts";
import { checkSize } from "./rules.ts";

const MAX_SOURCES = 100;

const WITH_CONTENT = new Set(["user.message", "user.custom_tool_result", "user.tool_result"]);

interface Source {
  readonly fileId: string;
  readonly blockType: "image" | "document";
  /** Of the file's id in the request. */
  readonly field: string;
}

/** Those of one request; `close` gives the memory back, once its events are appended or refused. */
export class GivenFiles {
  private readonly files: Pick<FileAttachments, "bytes">;
  private readonly budget: ByteBudget;
  private readonly read = new Map<string, Uint8Array>();
  private taken = 0;

  constructor(files: Pick<FileAttachments, "bytes">, budget: ByteBudget) {
    this.files = files;
    this.budget = budget;
  }

  /**
   * The same events, each with the files that it names in its `internal`. NOT_FOUND, also for a file whose time is over;
   * INVALID_FIELD for more than 100 such blocks, and bytes that are nothing that the block may show; MESSAGE_TOO_LARGE for an
   * event that is larger than 32 MiB with its files in base64; UNAVAILABLE.
   */
  async beside(events: readonly NewEvent[], workspaceId: string, field = "events"): Promise<NewEvent[]> {
    const sources = events.map((event, at) => sourcesOf(event, `${field}[${at}].payload`));
    const beyond = sources.flat()[MAX_SOURCES];
    if (beyond !== undefined)
      throw invalidField(beyond.field, `a request has at most ${MAX_SOURCES} blocks whose source is a file`);
    const result: NewEvent[] = [];
    for (const [at, event] of events.entries()) {
      const internal = await this.internalOf(sources[at]!, workspaceId);
      if (internal !== undefined) checkSize(event.payload, internal, `${field}[${at}]`);
      result.push(internal === undefined ? event : { ...event, internal });
    }
    return result;
  }

  close(): void {
    this.read.clear();
    this.budget.giveBack(this.taken);
    this.taken = 0;
  }

  private async internalOf(sources: readonly Source[], workspaceId: string): Promise<string | undefined> {
    if (sources.length === 0) return undefined;
    const files = new Map<string, GivenContent>();
    for (const source of sources) {
      const bytes = await this.bytesOf(source, workspaceId);
      files.set(source.fileId, givenContent(bytes, source.blockType, source.field));
    }
    return JSON.stringify({ v: 1, files: Object.fromEntries(files) });
  }

  private async bytesOf({ fileId, field }: Source, workspaceId: string): Promise<Uint8Array> {
    const known = this.read.get(fileId);
    if (known !== undefined) return known;
    const mayRead = (sizeBytes: number) => {
      const asText = Math.ceil(sizeBytes / 3) * 4;
      checkBytes(asText, MAX_EVENT_BYTES, field);
      checkBytes(this.taken + asText, MAX_CALL_BYTES, field);
      this.budget.take(asText);
      this.taken += asText;
    };
    const bytes = await this.files.bytes({ fileId, workspaceId, mayRead }, field);
    this.read.set(fileId, bytes);
    return bytes;
  }
}

function sourcesOf({ type, payload }: NewEvent, path: string): Source[] {
  // Most say nothing of files. An escaped letter is read like any other.
  if (!WITH_CONTENT.has(type) || !/file|\\u/.test(payload)) return [];
  const { content } = JSON.parse(payload) as { content?: unknown };
  if (!Array.isArray(content)) return [];
  return content.flatMap((block: { type?: string; source?: { type?: string; file_id?: string } }, at) => {
    const { type: blockType, source } = block;
    if ((blockType !== "image" && blockType !== "document") || source?.type !== "file") return [];
    return [{ fileId: source.file_id ?? "", blockType, field: `${path}.content[${at}].source.file_id` }];
  });
}
