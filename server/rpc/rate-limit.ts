/**
 * How many requests a key may make: a bucket of tokens for each key, in the memory of this replica. Requests of other replicas
 * are not counted here. Off unless the operator sets a rate.
 */
import type { DescMethod, Message } from "@bufbuild/protobuf";
import type { Clock } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";
import { createContextKey, type RpcContext } from "../../kit/rpc/context.ts";
import type { RpcInterceptor } from "../../kit/rpc/pipeline.ts";
import { methodPath } from "../../kit/rpc/service.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import {
  type EmitEventsRequest,
  EmitEventsRequestSchema,
  type EmitLargeEventsRequest,
  EmitLargeEventsRequestSchema,
} from "../../proto/gen/tendon/v1/session_service_pb.js";
import { ThreadService } from "../../proto/gen/tendon/v1/thread_service_pb.js";
import { WorkService } from "../../proto/gen/tendon/v1/work_service_pb.js";
import { type Principal, principalOf } from "../ports/principal.ts";

export interface RateLimit {
  /** 0: no limit. */
  readonly perMinute: number;
  /** How many may come at once after a pause; 0: those of ten seconds. */
  readonly burst: number;
}

const MINUTE_MS = 60_000;
const DEFAULT_BURST_MS = 10_000;
/** Buckets of so many keys that were used last are there, and at most twice as many; others begin with a full one. */
const KEPT_KEYS = 10_000;

interface Bucket {
  tokens: number;
  atMs: number;
}

export class TokenBuckets {
  private readonly clock: Clock;
  private readonly perMs: number;
  private readonly most: number;
  /** Those used since the other map was set aside; both together are the newest. */
  private recent = new Map<string, Bucket>();
  private older = new Map<string, Bucket>();

  constructor({ perMinute, burst }: RateLimit, clock: Clock) {
    this.clock = clock;
    this.perMs = perMinute / MINUTE_MS;
    this.most = Math.max(1, burst || Math.floor(this.perMs * DEFAULT_BURST_MS));
  }

  get size(): number {
    return this.recent.size + this.older.size;
  }

  /** Takes a token. Without one it gives the time after which there is one, in whole milliseconds from 1. */
  take(key: string): number | undefined {
    const nowMs = this.clock.monotonicMs();
    const { tokens, atMs } = this.recent.get(key) ??
      this.older.get(key) ?? { tokens: this.most, atMs: nowMs };
    const filled = Math.min(this.most, tokens + (nowMs - atMs) * this.perMs);
    const isFree = filled >= 1;
    this.keep(key, { tokens: isFree ? filled - 1 : filled, atMs: nowMs });
    return isFree ? undefined : Math.max(1, Math.ceil((1 - filled) / this.perMs));
  }

  private keep(key: string, bucket: Bucket): void {
    this.recent.set(key, bucket);
    if (this.recent.size < KEPT_KEYS) return;
    this.older = this.recent;
    this.recent = new Map();
  }
}

/** What calls share that belong to one request of another wire: they are let in, or refused, together. */
export interface Admission {
  verdict?: "admitted" | TendonError;
}

export const admissionKey = createContextKey<Admission>("admission");

/** Decided at a call's first request, when it is known what it says. Throws RATE_LIMITED. */
export function rateLimitInterceptor(limit: RateLimit, clock: Clock): RpcInterceptor {
  if (limit.perMinute === 0) return {};
  const buckets = new TokenBuckets(limit, clock);
  return {
    onRequest(context, request) {
      const admission = admissionOf(context);
      admission.verdict ??= verdictOf(context, request, buckets, limit);
      if (admission.verdict !== "admitted") throw admission.verdict;
    },
  };
}

function admissionOf(context: RpcContext): Admission {
  const admission = context.get(admissionKey) ?? {};
  context.set(admissionKey, admission);
  return admission;
}

function verdictOf(
  context: RpcContext,
  request: Message,
  buckets: TokenBuckets,
  { perMinute }: RateLimit,
): "admitted" | TendonError {
  const key = limitedKey(principalOf(context));
  if (key === undefined || isAlwaysLetIn(context.method, request)) return "admitted";
  const waitMs = buckets.take(key);
  if (waitMs === undefined) return "admitted";
  return new TendonError(
    "RATE_LIMITED",
    `the key's limit of ${perMinute} requests a minute is reached; try again in ${waitMs} ms`,
    { limit: "requests_per_minute", per_minute: String(perMinute), retry_after_ms: String(waitMs) },
  );
}

/** Keys of applications and operators. Programs of the platform, and workers, do what those have asked for. */
function limitedKey(principal: Principal): string | undefined {
  return principal.kind === "client" || principal.kind === "admin" ? principal.keyId : undefined;
}

/** What ends something: refusing it would make a load last that the limit is there to lower. */
const ENDINGS: ReadonlySet<string> = new Set(
  [
    AdminService.method.stopSessions,
    AdminService.method.revokeApiKey,
    AdminService.method.revokeJoinToken,
    AdminService.method.revokeHandAgent,
    EnvironmentService.method.revokeEnvironmentKey,
    HandService.method.cancelExecution,
    HandService.method.releaseHand,
    ThreadService.method.stopThread,
    ThreadService.method.stopTree,
    WorkService.method.stopWork,
  ].map(methodPath),
);

/** Whoever answers a call repeats a refused answer again and again while the agent waits for it. */
const CLOSING_TYPES: ReadonlySet<string> = new Set([
  "user.tool_result",
  "user.custom_tool_result",
  "user.tool_confirmation",
  "user.interrupt",
]);

function isAlwaysLetIn(method: DescMethod, request: Message): boolean {
  if (ENDINGS.has(methodPath(method))) return true;
  return emitted(request)?.events.some(({ type }) => CLOSING_TYPES.has(type)) ?? false;
}

function emitted(request: Message): EmitEventsRequest | undefined {
  if (request.$typeName === EmitEventsRequestSchema.typeName) return request as EmitEventsRequest;
  if (request.$typeName !== EmitLargeEventsRequestSchema.typeName) return undefined;
  const { kind } = request as EmitLargeEventsRequest;
  return kind.case === "request" ? kind.value : undefined;
}
