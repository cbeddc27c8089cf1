/** The body of a request: read whole, with a bound, and kept as the text that came. */
import { invalidField, TendonError } from "../../../kit/errors.ts";
import type { HttpExchange } from "../router.ts";
import { Fields } from "./fields.ts";

/** As the API that existing clients know has it. */
export const MAX_BODY_BYTES = 32 * 1024 * 1024;
const MAX_DROPPED_BYTES = 4 * MAX_BODY_BYTES;

export class RequestBody {
  /** As it came; "{}" for a request without a body. */
  readonly text: string;
  readonly fields: Fields;

  constructor(text: string) {
    this.text = text.trim() === "" ? "{}" : text;
    this.fields = new Fields(parsed(this.text), "");
  }
}

/** Throws MESSAGE_TOO_LARGE, INVALID_FIELD for what is no JSON object in UTF-8, CANCELLED when it breaks off. */
export async function readBody({ request }: HttpExchange): Promise<RequestBody> {
  // What would not be read to its end anyway is not waited for.
  if (Number(request.headers["content-length"] ?? 0) > MAX_DROPPED_BYTES) throw tooLarge();
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of request as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      // Whoever is still sending does not hear an answer: the rest is read and dropped, within reason.
      if (bytes > MAX_DROPPED_BYTES) throw tooLarge();
      if (bytes <= MAX_BODY_BYTES) chunks.push(chunk);
      else chunks.length = 0;
    }
    if (bytes > MAX_BODY_BYTES) throw tooLarge();
  } catch (error) {
    if (error instanceof TendonError) throw error;
    throw new TendonError("CANCELLED", "the request broke off");
  }
  try {
    return new RequestBody(new TextDecoder("utf-8", { fatal: true }).decode(Buffer.concat(chunks)));
  } catch (error) {
    if (error instanceof TendonError) throw error;
    throw invalidField("body", "is not UTF-8");
  }
}

function parsed(text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw invalidField("body", "is not JSON");
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw invalidField("body", "must be a JSON object");
  }
  return value as Record<string, unknown>;
}

function tooLarge(): TendonError {
  return new TendonError("MESSAGE_TOO_LARGE", `the body has more than ${MAX_BODY_BYTES} bytes`);
}
