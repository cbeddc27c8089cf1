/** What a caller of the HTTP API is told about a failure (pure). */

import { REASONS, type Reason, type TendonError } from "../../../kit/errors.ts";
import { fieldWords } from "./field-words.ts";

export interface ApiFailure {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: unknown;
}

/** Where existing clients know a word of their own for a reason. */
const ERROR_CODES: Partial<Record<Reason, string>> = {
  ENVIRONMENT_ARCHIVED: "environment_archived",
  HEARTBEAT_PRECONDITION_FAILED: "heartbeat_precondition_failed",
};

export function apiFailure(error: TendonError, requestId: string): ApiFailure {
  const { status, type } = kindOf(error);
  const code = codeOf(error);
  const { message, field } = fieldWords(error.message, error.metadata.field);
  const { field: _, request_id: _own, ...facts } = error.metadata;
  const details = {
    ...(code !== undefined && { error_code: code }),
    reason: error.reason,
    ...facts,
    ...(field !== undefined && { field }),
    ...(error.reason === "HEARTBEAT_PRECONDITION_FAILED" && { current_state: leaseState(error) }),
  };
  const headers: Record<string, string> = {};
  // Clients repeat every 409 by themselves; ours are answers, and stay the same.
  if (status === 409) headers["x-should-retry"] = "false";
  if (status === 429) {
    const waitMs = Number(error.metadata.retry_after_ms ?? 1_000);
    headers["retry-after"] = String(Math.max(1, Math.ceil(waitMs / 1_000)));
    // Clients that know this header wait no longer than they have to.
    headers["retry-after-ms"] = String(waitMs);
  }
  return {
    status,
    headers,
    body: { type: "error", error: { type, message, ...ownFields(error), details }, request_id: requestId },
  };
}

/** What existing clients look for beside the message. */
function ownFields({ reason, metadata }: TendonError) {
  if (reason !== "MEMORY_PATH_CONFLICT") return {};
  const { conflicting_memory_id = "", conflicting_path } = metadata;
  return { conflicting_memory_id, ...(conflicting_path !== undefined && { conflicting_path }) };
}

/** How the item stands of which a worker believed something else. */
function leaseState({ metadata }: TendonError) {
  const { last_heartbeat: last = "", state, ttl_ms: ttlMs } = metadata;
  const ttlSeconds = Number(ttlMs ?? 0) / 1_000;
  return { last_heartbeat: last || null, lease_extended: false, state, ttl_seconds: ttlSeconds };
}

/** Of these there is room again only when somebody makes it. */
const STOCKS: ReadonlySet<string> = new Set([
  "blob_bytes",
  "credentials",
  "deployments",
  "environment_keys",
  "memories",
  "memory_bytes",
  "memory_stores",
  "webhook_endpoints",
]);

/** Clients repeat every 429 by themselves; what is full stays full. */
function kindOf(error: TendonError): { status: number; type: string } {
  const { httpStatus, httpType } = REASONS[error.reason];
  return isFull(error)
    ? { status: 400, type: "invalid_request_error" }
    : { status: httpStatus, type: httpType };
}

function isFull({ reason, metadata }: TendonError): boolean {
  return reason === "LIMIT_EXCEEDED" && STOCKS.has(metadata.limit ?? "");
}

function codeOf(error: TendonError): string | undefined {
  if (isFull(error) && error.metadata.limit === "blob_bytes") return "storage_quota_exceeded";
  return codeOfReason(error);
}

function codeOfReason({ reason, metadata }: TendonError): string | undefined {
  if (reason === "NOT_FOUND" && metadata.resource === "environment") return "environment_not_found";
  return metadata.error_code ?? ERROR_CODES[reason];
}
