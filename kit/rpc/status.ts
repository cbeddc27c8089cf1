/** Failures on the wire: a TendonError travels as status code, message and google.rpc.ErrorInfo; anything else stays inside. */
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { anyPack, anyUnpack, durationFromMs } from "@bufbuild/protobuf/wkt";
import { Metadata, type StatusObject, status } from "@grpc/grpc-js";
import {
  type ErrorInfo,
  ErrorInfoSchema,
  type RetryInfo,
  RetryInfoSchema,
} from "../../proto/gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../../proto/gen/google/rpc/status_pb.js";
import { ERROR_DOMAIN, REASONS, type Reason, TendonError } from "../errors.ts";
import { MAX_STATUS_MESSAGE_BYTES } from "../limits.ts";
import { bufferOf } from "./service.ts";
import { transportFailure } from "./transport-failure.ts";

const DETAILS_TRAILER = "grpc-status-details-bin";
const MAX_METADATA_ENTRIES = 16;
const MAX_METADATA_CHARS = 256;

/** What a caller learns about a failure. */
export interface WireFailure {
  code: status;
  message: string;
  info: ErrorInfo;
  /** When a repeat may go well, where that is known (`retry_after_ms` in the metadata). */
  retry: RetryInfo | undefined;
}

/** A failure that another program reported and that this one's catalogue does not know; its code is kept. */
export class RemoteError extends TendonError {
  private readonly wireCode: status;
  /** The reason as it was sent; empty when the other side sent none. */
  readonly wireReason: string;

  constructor(code: status, wireReason: string, message: string, metadata: Record<string, string> = {}) {
    super(GENERIC_REASONS[code] ?? "INTERNAL", message, metadata);
    this.wireCode = code;
    this.wireReason = wireReason;
  }

  override get code(): status {
    return this.wireCode;
  }
}

/** The reason that says no more than the code does. A code that is not here becomes INTERNAL, and keeps its number. */
const GENERIC_REASONS: Partial<Record<status, Reason>> = {
  [status.CANCELLED]: "CANCELLED",
  [status.INVALID_ARGUMENT]: "INVALID_FIELD",
  [status.DEADLINE_EXCEEDED]: "DEADLINE_EXCEEDED",
  [status.NOT_FOUND]: "NOT_FOUND",
  [status.ALREADY_EXISTS]: "ALREADY_EXISTS",
  [status.PERMISSION_DENIED]: "ROLE_NOT_ALLOWED",
  [status.RESOURCE_EXHAUSTED]: "LIMIT_EXCEEDED",
  [status.UNIMPLEMENTED]: "NOT_IMPLEMENTED",
  [status.UNAVAILABLE]: "UNAVAILABLE",
  [status.UNAUTHENTICATED]: "UNAUTHENTICATED",
};

/** What the caller is told about anything thrown. The text of an error that is not for callers is replaced. */
export function wireFailure(error: unknown): WireFailure {
  if (!(error instanceof TendonError)) {
    const info = errorInfo("INTERNAL", {});
    return { code: status.INTERNAL, message: "internal error", info, retry: undefined };
  }
  const reason = error instanceof RemoteError && error.wireReason !== "" ? error.wireReason : error.reason;
  return {
    code: error.code,
    message: boundedMessage(error.message),
    info: errorInfo(reason, error.metadata),
    retry: retryInfo(error.metadata),
  };
}

/** The failure as grpc-js sends it. */
export function grpcStatus(failure: WireFailure): StatusObject {
  const metadata = new Metadata();
  const { retry } = failure;
  const details = create(StatusSchema, {
    code: failure.code,
    message: failure.message,
    details: [anyPack(ErrorInfoSchema, failure.info), ...(retry ? [anyPack(RetryInfoSchema, retry)] : [])],
  });
  metadata.set(DETAILS_TRAILER, bufferOf(toBinary(StatusSchema, details)));
  return { code: failure.code, details: failure.message, metadata };
}

/** The error that a grpc-js client received, with its reason when the other side sent one of ours. */
export function errorFromStatus(received: Partial<StatusObject>): TendonError {
  const code = received.code ?? status.UNKNOWN;
  const message = received.details ?? "";
  const info = received.metadata === undefined ? undefined : receivedInfo(received.metadata);
  if (info === undefined) return transportError(code, message);
  if (Object.hasOwn(REASONS, info.reason)) {
    const reason = info.reason as Reason;
    if (REASONS[reason].code === code) return new TendonError(reason, message, info.metadata);
  }
  return new RemoteError(code, info.reason, message, info.metadata);
}

/** Nobody of ours sent it; where no connection came about, `cause` in the metadata says why. */
function transportError(code: status, details: string): RemoteError {
  const { message, cause } = transportFailure(details);
  return new RemoteError(code, "", message, cause === undefined ? {} : { cause });
}

function receivedInfo(metadata: Metadata): ErrorInfo | undefined {
  const [bytes] = metadata.get(DETAILS_TRAILER);
  if (!(bytes instanceof Uint8Array)) return undefined;
  try {
    for (const detail of fromBinary(StatusSchema, bytes).details) {
      const info = anyUnpack(detail, ErrorInfoSchema);
      if (info?.domain === ERROR_DOMAIN) return info;
    }
  } catch {
    // Details that do not parse say nothing; code and message still stand.
  }
  return undefined;
}

function retryInfo({ retry_after_ms: text = "" }: Record<string, string>): RetryInfo | undefined {
  if (!/^\d{1,9}$/.test(text)) return undefined;
  return create(RetryInfoSchema, { retryDelay: durationFromMs(Number(text)) });
}

function errorInfo(reason: string, metadata: Record<string, string>): ErrorInfo {
  const entries = Object.entries(metadata).slice(0, MAX_METADATA_ENTRIES);
  return create(ErrorInfoSchema, {
    reason,
    domain: ERROR_DOMAIN,
    metadata: Object.fromEntries(
      entries.map(([name, value]) => [name, wellFormed(value.slice(0, MAX_METADATA_CHARS))]),
    ),
  });
}

/** grpc-js percent-encodes the message (and throws on half a surrogate pair), so the bound counts encoded bytes. */
function boundedMessage(message: string): string {
  let text = wellFormed(message.slice(0, MAX_STATUS_MESSAGE_BYTES));
  let cut = text.length < message.length;
  while (encodeURI(text).length > MAX_STATUS_MESSAGE_BYTES) {
    text = wellFormed(text.slice(0, Math.floor(text.length * 0.8)));
    cut = true;
  }
  return cut ? `${text}…` : text;
}

function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, "\uFFFD");
}
