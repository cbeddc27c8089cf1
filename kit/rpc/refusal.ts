/** What the Connect library finds wrong with a request before any method sees it, as the failure that callers are told. */
import { Code, ConnectError } from "@connectrpc/connect";
import {
  createAsyncIterable,
  readAllBytes,
  type UniversalServerResponse,
} from "@connectrpc/connect/protocol";
import { codeToHttpStatus, errorFromJsonBytes, errorToJsonBytes } from "@connectrpc/connect/protocol-connect";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { ErrorInfoSchema, RetryInfoSchema } from "../../proto/gen/google/rpc/error_details_pb.js";
import { type Reason, TendonError } from "../errors.ts";
import { MAX_GRPC_MESSAGE_BYTES } from "../limits.ts";
import { REQUEST_ID_HEADER } from "./context.ts";
import { wireFailure } from "./status.ts";

const NOT_UTF8 = "the body is not valid UTF-8";
const fatalDecoder = new TextDecoder("utf-8", { fatal: true });

/** Reads JSON strictly: a field that nobody knows is a typing error, and bytes that are no text are never mended. */
export const strictJson = {
  ignoreUnknownFields: false,
  // The library's serializers take a decoder here, although the type of its router's options does not say so.
  textDecoder: {
    decode(bytes: Uint8Array): string {
      try {
        return fatalDecoder.decode(bytes);
      } catch {
        throw new ConnectError(NOT_UTF8, Code.InvalidArgument);
      }
    },
  },
};

type OutgoingDetail = NonNullable<ConstructorParameters<typeof ConnectError>[3]>[number];

/** The failure as the library sends it; the request id reaches the caller as a header, a trailer or both. */
export function connectError(error: unknown, requestId: string): ConnectError {
  const { code, message, info, retry } = wireFailure(error);
  const details: OutgoingDetail[] = [{ desc: ErrorInfoSchema, value: info }];
  if (retry !== undefined) details.push({ desc: RetryInfoSchema, value: retry });
  return new ConnectError(message, code as number as Code, { [REQUEST_ID_HEADER]: requestId }, details);
}

const REASONS_OF_CODES: Partial<Record<Code, Reason>> = {
  [Code.Aborted]: "CANCELLED",
  [Code.Canceled]: "CANCELLED",
  [Code.DeadlineExceeded]: "DEADLINE_EXCEEDED",
  [Code.ResourceExhausted]: "MESSAGE_TOO_LARGE",
  [Code.Unimplemented]: "NOT_IMPLEMENTED",
};

/** `type` names the message that was expected. No value that the request holds is repeated: it may be a secret. */
export function refusalOf(error: ConnectError, type: string): TendonError {
  const reason = REASONS_OF_CODES[error.code] ?? "INVALID_FIELD";
  const { message, field } = explained(error.rawMessage, type);
  return new TendonError(reason, message, field === undefined ? {} : { field });
}

/** Gives the answer to a unary Connect request that the library refused our reason and the request id. */
export async function refusalResponse(
  response: UniversalServerResponse,
  type: string,
  requestId: string,
): Promise<UniversalServerResponse> {
  const header = new Headers(response.header);
  const body = await readAllBytes(response.body as AsyncIterable<Uint8Array>, Number.MAX_SAFE_INTEGER);
  const encoding = header.get("content-encoding");
  const compression = [compressionGzip, compressionBrotli].find(({ name }) => name === encoding);
  const json =
    compression === undefined ? body : await compression.decompress(body, 2 * MAX_GRPC_MESSAGE_BYTES);
  const found = errorFromJsonBytes(json, undefined, new ConnectError("internal error", Code.Internal));
  const error = connectError(refusalOf(found, type), requestId);
  const told = errorToJsonBytes(error, undefined);
  header.delete("content-encoding");
  header.set("content-length", String(told.byteLength));
  return { status: codeToHttpStatus(error.code), header, body: createAsyncIterable([told]) };
}

function explained(text: string, type: string): { message: string; field?: string } {
  const binary = /^parse binary: (.*)$/s.exec(text);
  if (binary !== null) return { message: `the bytes received are no ${type}: ${binary[1]}` };
  const json = /^cannot decode (\w+) (\S+) from JSON: (.*)$/s.exec(text);
  if (json === null) return { message: text };
  const [, kind, name = "", problem = ""] = json;
  if (kind === "field" || kind === "oneof") {
    const field = name.slice(name.lastIndexOf(".") + 1);
    return { message: `${field}: ${problemOfField(problem)}`, field };
  }
  const unknown = /^key "(.*)" is unknown$/s.exec(problem);
  if (unknown !== null)
    return { message: `${unknown[1]}: is an unknown field of ${name}`, field: unknown[1]! };
  const twice = /^duplicate object key "(.*)"$/s.exec(problem);
  if (twice !== null) return { message: `${twice[1]}: stands there twice`, field: twice[1]! };
  if (problem.startsWith("maximum recursion depth")) return { message: `the body is nested too deeply` };
  return { message: syntaxProblem(problem) ?? `the body holds something else where a ${name} is expected` };
}

/** Without the value that was found. */
function problemOfField(problem: string): string {
  if (problem.endsWith("invalid UTF8")) return "holds half a surrogate pair, which is no text";
  return problem.replace(/,? got .*$/s, "");
}

/** Node's message about JSON may quote the body. */
function syntaxProblem(problem: string): string | undefined {
  if (!/ JSON(?: input| at position \d+.*)?$|^Unterminated |^Unexpected |^Expected |^Bad /s.test(problem))
    return;
  const position = /at position (\d+)/.exec(problem)?.[1];
  return `the body is not valid JSON${position === undefined ? "" : `, from character ${position} on`}`;
}
