/** Reads what an MCP server answers to a recorded call: its result, and what comes before that. */
import { Readable } from "node:stream";
import type { ReadableStream } from "node:stream/web";
import {
  type CallResult,
  failedResult,
  MAX_RESULT_BYTES,
  resultOfMessage,
  tooLarge,
} from "./call-results.ts";
import { dataOf, EventStream, EventStreamTooLarge } from "./event-stream.ts";
import { Redactor } from "./redactor.ts";
import type { Answer } from "./upstream.ts";

export interface AnswerReader {
  readonly serverName: string;
  /** JSON text of the request's id. */
  readonly idText: string;
  /** An event that is not the result; resolves when there is room for more. */
  readonly onEvent: (event: Buffer) => Promise<void>;
  /** Bytes have come. */
  readonly onBytes: () => void;
}

/** JSON around a result. */
const MAX_MESSAGE_BYTES = MAX_RESULT_BYTES + 4096;

/** Undefined when the answer ends without a result. Rejects when it breaks off. */
export async function readAnswer(
  { response, secrets }: Answer,
  reader: AnswerReader,
): Promise<CallResult | undefined> {
  if (response.body === null)
    return response.ok ? undefined : statusResult(reader.serverName, response.status);
  const body = Readable.fromWeb(response.body as ReadableStream<Uint8Array>);
  try {
    const type = response.headers.get("content-type") ?? "";
    if (type.startsWith("text/event-stream")) return fitting(await readEvents(body, secrets, reader), reader);
    const text = await readText(body, secrets, reader.onBytes);
    if (text === undefined) return tooLarge(reader.serverName);
    const result = resultOfMessage(text, reader.idText) ?? resultOfMessage(text, "null");
    if (result !== undefined) return fitting(result, reader);
    return response.ok ? undefined : statusResult(reader.serverName, response.status);
  } finally {
    body.destroy();
  }
}

function statusResult(serverName: string, status: number): CallResult {
  return failedResult(
    { part: "upstream", reason: "MCP_ERROR" },
    `MCP server "${serverName}" refused the call with status ${status}.`,
  );
}

function fitting(result: CallResult | undefined, { serverName }: AnswerReader): CallResult | undefined {
  if (result !== undefined && Buffer.byteLength(result.text) > MAX_RESULT_BYTES) return tooLarge(serverName);
  return result;
}

async function readText(
  body: Readable,
  secrets: readonly string[],
  onBytes: () => void,
): Promise<string | undefined> {
  const redactor = new Redactor(secrets);
  const parts: Buffer[] = [];
  let size = 0;
  for await (const chunk of body) {
    onBytes();
    size += (chunk as Uint8Array).length;
    if (size > MAX_MESSAGE_BYTES) return undefined;
    parts.push(redactor.push(Buffer.from(chunk as Uint8Array)));
  }
  return Buffer.concat([...parts, redactor.end()]).toString("utf8");
}

async function readEvents(
  body: Readable,
  secrets: readonly string[],
  { serverName, idText, onEvent, onBytes }: AnswerReader,
): Promise<CallResult | undefined> {
  const redactor = new Redactor(secrets);
  const events = new EventStream(MAX_MESSAGE_BYTES);
  try {
    for await (const chunk of body) {
      onBytes();
      for (const event of events.push(redactor.push(Buffer.from(chunk as Uint8Array)))) {
        const result = resultOfMessage(dataOf(event), idText);
        if (result !== undefined) return result;
        await onEvent(event);
      }
    }
  } catch (error) {
    if (error instanceof EventStreamTooLarge) return tooLarge(serverName);
    throw error;
  }
  return undefined;
}
