/**
 * The one catalogue of failures that a caller can act on.
 *
 * Three families are never mixed: a `TendonError` says the caller can do something; things that merely
 * happened are events or results; a bug is an `assert`, whose text never leaves the process.
 */
import { status } from "@grpc/grpc-js";

/** The parts of the platform that a failure can come from; `client` is whoever uses it. */
export const PARTS = [
  "model",
  "harness",
  "server",
  "tunnel",
  "hand_agent",
  "sandbox",
  "proxy",
  "upstream",
  "client",
] as const;

export type Part = (typeof PARTS)[number];

/** Where something failed, and why: every failure in a log says both (docs/tracing.md). */
export interface FailureOrigin {
  readonly part: Part;
  /** In capitals, such as `NO_HAND_AGENT`; programs may switch on it. */
  readonly reason: string;
}

/** The failure that a `TendonError` is to a log; one that names no part is the server's. */
export function originOf(error: TendonError): FailureOrigin {
  const part = PARTS.find((known) => known === error.metadata.part) ?? "server";
  return { part, reason: error.reason };
}

interface ReasonRow {
  /** The gRPC status code that carries this reason. */
  code: status;
  /** The error type that the HTTP API answers with. */
  httpType: string;
  /** The HTTP status that the HTTP API answers with. */
  httpStatus: number;
}

const row = (code: status, httpType: string, httpStatus: number): ReasonRow => ({
  code,
  httpType,
  httpStatus,
});

/** Reason → gRPC code → HTTP type. Grep a reason here to find where it is raised and how it reaches a client. */
export const REASONS = {
  INVALID_FIELD: row(status.INVALID_ARGUMENT, "invalid_request_error", 400),
  INVALID_PAGE_TOKEN: row(status.INVALID_ARGUMENT, "invalid_request_error", 400),
  EVENT_TYPE_NOT_ALLOWED: row(status.INVALID_ARGUMENT, "invalid_request_error", 400),
  UNAUTHENTICATED: row(status.UNAUTHENTICATED, "authentication_error", 401),
  KEY_EXPIRED: row(status.UNAUTHENTICATED, "authentication_error", 401),
  ROLE_NOT_ALLOWED: row(status.PERMISSION_DENIED, "permission_error", 403),
  NOT_FOUND: row(status.NOT_FOUND, "not_found_error", 404),
  ALREADY_EXISTS: row(status.ALREADY_EXISTS, "conflict_error", 409),
  EVENT_CONTENT_DIFFERS: row(status.ALREADY_EXISTS, "conflict_error", 409),
  REQUEST_ID_REUSED: row(status.ALREADY_EXISTS, "conflict_error", 409),
  POSITION_MISMATCH: row(status.ABORTED, "conflict_error", 409),
  VERSION_MISMATCH: row(status.ABORTED, "conflict_error", 409),
  LEASE_FENCED: row(status.FAILED_PRECONDITION, "conflict_error", 409),
  SESSION_ARCHIVED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  SESSION_RUNNING: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  AGENT_ARCHIVED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  VAULT_ARCHIVED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  CREDENTIAL_ARCHIVED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  CREDENTIAL_REFRESHING: row(status.ABORTED, "conflict_error", 409),
  DESTINATION_FIXED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  SEAL_REFUSED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  CONNECT_FAILED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  CONNECT_STATE_REFUSED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  ENVIRONMENT_ARCHIVED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  ENVIRONMENT_IN_USE: row(status.FAILED_PRECONDITION, "conflict_error", 409),
  DEPLOYMENT_ARCHIVED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  MEMORY_STORE_ARCHIVED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  MEMORY_PATH_CONFLICT: row(status.ALREADY_EXISTS, "memory_path_conflict_error", 409),
  MEMORY_PRECONDITION_FAILED: row(status.ABORTED, "memory_precondition_failed_error", 409),
  MEMORY_VERSION_CURRENT: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  OUTCOME_ACTIVE: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  CALL_ALREADY_ANSWERED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  HAND_NOT_READY: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  HAND_LOST: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  HAND_RELEASED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  SLOT_OCCUPIED: row(status.FAILED_PRECONDITION, "conflict_error", 409),
  EXECUTION_BOUND_ELSEWHERE: row(status.FAILED_PRECONDITION, "conflict_error", 409),
  WORK_NOT_QUEUED: row(status.FAILED_PRECONDITION, "conflict_error", 409),
  WORK_NOT_HELD: row(status.FAILED_PRECONDITION, "conflict_error", 409),
  WORK_STOPPED: row(status.FAILED_PRECONDITION, "conflict_error", 409),
  HEARTBEAT_PRECONDITION_FAILED: row(status.ABORTED, "invalid_request_error", 412),
  JOIN_TOKEN_INVALID: row(status.UNAUTHENTICATED, "authentication_error", 401),
  HAND_AGENT_DUPLICATED: row(status.FAILED_PRECONDITION, "conflict_error", 409),
  HAND_AGENT_REVOKED: row(status.UNAUTHENTICATED, "authentication_error", 401),
  PROTOCOL_VERSION_UNSUPPORTED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  NOT_CONFIGURED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  NOT_IMPLEMENTED: row(status.UNIMPLEMENTED, "not_found_error", 404),
  RESYNC: row(status.OUT_OF_RANGE, "invalid_request_error", 400),
  NO_HAND_AGENT: row(status.UNAVAILABLE, "overloaded_error", 529),
  PROVISION_FAILED: row(status.UNAVAILABLE, "api_error", 500),
  PROVISION_TIMEOUT: row(status.DEADLINE_EXCEEDED, "timeout_error", 504),
  MESSAGE_TOO_LARGE: row(status.RESOURCE_EXHAUSTED, "invalid_request_error", 413),
  BUDGET_REACHED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  THREAD_LIMIT_REACHED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  THREAD_STOPPED: row(status.FAILED_PRECONDITION, "invalid_request_error", 400),
  INTERRUPTED: row(status.FAILED_PRECONDITION, "conflict_error", 409),
  LIMIT_EXCEEDED: row(status.RESOURCE_EXHAUSTED, "rate_limit_error", 429),
  RATE_LIMITED: row(status.RESOURCE_EXHAUSTED, "rate_limit_error", 429),
  DEADLINE_EXCEEDED: row(status.DEADLINE_EXCEEDED, "timeout_error", 504),
  DRAINING: row(status.UNAVAILABLE, "overloaded_error", 529),
  UNAVAILABLE: row(status.UNAVAILABLE, "overloaded_error", 529),
  CANCELLED: row(status.CANCELLED, "api_error", 499),
  INTERNAL: row(status.INTERNAL, "api_error", 500),
} as const satisfies Record<string, ReasonRow>;

export type Reason = keyof typeof REASONS;

/** The domain of every `google.rpc.ErrorInfo` that Tendon sends. */
export const ERROR_DOMAIN = "tendon.dev";

/** A failure that the caller can act on. `metadata` repeats, for programs, the values that the message names. */
export class TendonError extends Error {
  override readonly name = "TendonError";
  readonly reason: Reason;
  readonly metadata: Record<string, string>;

  constructor(
    reason: Reason,
    message: string,
    metadata: Record<string, string> = {},
    options?: ErrorOptions,
  ) {
    super(message, options);
    this.reason = reason;
    this.metadata = metadata;
  }

  get code(): status {
    return REASONS[this.reason].code;
  }
}

/** The value is of a field that the caller sent; `path` is its path in the request, in proto names. */
export function invalidField(path: string, problem: string): TendonError {
  return new TendonError("INVALID_FIELD", `${path}: ${problem}`, { field: path });
}

export function notFound(what: string, id: string): TendonError {
  return new TendonError("NOT_FOUND", `no ${what} has the id "${id}"`, { resource: what, id });
}

export function isTendonError(error: unknown, reason?: Reason): error is TendonError {
  return error instanceof TendonError && (reason === undefined || error.reason === reason);
}

/** The message of anything thrown, for logs; never sent to a caller. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
