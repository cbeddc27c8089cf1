/**
 * Files that clients name as the source of an image or a document. Their bytes are put beside the event, for brains: the log
 * stands by itself whatever becomes of the file, and its forks have them too. The payload stays as it was sent.
 */

import { type ByteBudget, checkBytes, MAX_CALL_BYTES } from "../../kit/byte-budget.ts";
import { invalidField, TendonError } from "../../kit/errors.ts";
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

interface ReadFile {
  readonly bytes: Uint8Array;
  /** Of the text that stands in the place of its id. */
  readonly shownBytes: number;
}

/**
 * Those of one request. A file counts as often as it is named: what a brain is shown has it that often, and each event has it
 * beside it. `close` gives the memory back, once its events are appended or refused.
 */
export class GivenFiles {
  private readonly files: Pick<FileAttachments, "bytes">;
  private readonly budget: ByteBudget;
  private readonly read = new Map<string, ReadFile>();
  private taken = 0;

  constructor(files: Pick<FileAttachments, "bytes">, budget: ByteBudget) {
    this.files = files;
    this.budget = budget;
  }

  /**
   * The same events, each with the files that it names in its `internal`. NOT_FOUND, also for a file whose time is over;
   * INVALID_FIELD for more than 100 such blocks, and bytes that are nothing that the block may show; MESSAGE_TOO_LARGE for an
   * event that is larger than 32 MiB with its files in base64, and a request than 64 MiB; UNAVAILABLE.
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
    const checked = new Set<string>();
    const before = this.taken;
    for (const source of sources) {
      const { fileId, blockType, field } = source;
      const known = this.read.get(fileId);
      if (known !== undefined) this.take(known.shownBytes, before, field);
      const { bytes } = known ?? (await this.readFile(source, before, workspaceId));
      if (checked.has(`${blockType} ${fileId}`)) continue;
      files.set(fileId, givenContent(bytes, blockType, field));
      checked.add(`${blockType} ${fileId}`);
    }
    return JSON.stringify({ v: 1, files: Object.fromEntries(files) });
  }

  private async readFile({ fileId, blockType, field }: Source, before: number, workspaceId: string) {
    let asText = 0;
    const mayRead = (sizeBytes: number) => {
      asText = Math.ceil(sizeBytes / 3) * 4;
      checkBytes(asText, MAX_EVENT_BYTES, field);
      this.take(asText, before, field);
    };
    const bytes = await this.files.bytes({ fileId, workspaceId, mayRead }, field);
    const shownBytes = Math.max(asText, textBytes(givenContent(bytes, blockType, field)));
    // A text may need more than base64 does, where most of it has to be escaped.
    this.take(shownBytes - asText, before, field);
    const read = { bytes, shownBytes };
    this.read.set(fileId, read);
    return read;
  }

  /** `before`: what earlier events of the request have taken. */
  private take(bytes: number, before: number, field: string): void {
    const { taken } = this;
    if (taken + bytes > MAX_CALL_BYTES) throw tooLarge(field, "request", MAX_CALL_BYTES);
    if (taken + bytes - before > MAX_EVENT_BYTES) throw tooLarge(field, "event", MAX_EVENT_BYTES);
    this.budget.take(bytes);
    this.taken += bytes;
  }
}

function textBytes(content: GivenContent): number {
  return "text" in content ? Buffer.byteLength(JSON.stringify(content.text)) : 0;
}

function tooLarge(field: string, what: "request" | "event", limit: number): TendonError {
  const message = `${field}: with it the ${what} has more than ${limit} bytes; a file counts as often as it is named`;
  return new TendonError("MESSAGE_TOO_LARGE", message, { field, limit: String(limit) });
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
