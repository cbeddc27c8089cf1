/**
 * Webhooks: endpoints with sealed secrets, and the outbox. What is to be told is noted by the database in the transaction of
 * what happened (migration 18); here it becomes deliveries, which are sent in order in each lane.
 */
import type {
  WebhookDelivery,
  WebhookDeliveryState,
  WebhookEndpoint,
  WebhookState,
} from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import type { AuditInput } from "./audit.ts";
import type { SealedText } from "./credentials.ts";
import type { Page, PageRequest } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";

/** Of a workspace. */
export const MAX_WEBHOOK_ENDPOINTS = 32;
/** That sign besides the newest. */
export const MAX_OLD_SECRETS = 4;
/** Of one call. */
export const MAX_REPLAYED = 10_000;

export interface NewWebhookEndpoint {
  readonly id: string;
  readonly workspaceId: string;
  readonly url: string;
  readonly name: string;
  readonly description: string;
  readonly enabledEvents: readonly string[];
  readonly secret: SealedText;
  readonly request: RequestIdClaim;
  readonly audit: AuditInput;
}

/** What is undefined stays. */
export interface WebhookEndpointChange {
  readonly endpointId: string;
  readonly workspaceId: string | undefined;
  readonly url: string | undefined;
  readonly name: string | undefined;
  readonly description: string | undefined;
  readonly enabledEvents: readonly string[] | undefined;
  readonly state: WebhookState | undefined;
  readonly audit: AuditInput;
}

export interface WebhookSecretRow {
  readonly endpointId: string;
  readonly workspaceId: string;
  readonly number: number;
  readonly sealed: string;
}

export interface WebhookEndpointStore {
  /** `isNew`: false for a repeat, which returns what the first made. Throws LIMIT_EXCEEDED, REQUEST_ID_REUSED. */
  create(endpoint: NewWebhookEndpoint): Promise<{ endpoint: WebhookEndpoint; isNew: boolean }>;
  /** Undefined when there is none in what the caller sees. */
  find(endpointId: string, workspaceId: string | undefined): Promise<WebhookEndpoint | undefined>;
  /** Newest first. */
  list(workspaceId: string | undefined, page: PageRequest): Promise<Page<WebhookEndpoint>>;
  /** Undefined when there is none in what the caller sees. Enabling makes all that waits due. */
  update(change: WebhookEndpointChange): Promise<WebhookEndpoint | undefined>;
  /** With its deliveries. False when there is none in what the caller sees. */
  delete(endpointId: string, workspaceId: string | undefined, audit: AuditInput): Promise<boolean>;
  /** Adds a secret; those before it end after the overlap, those that are too many at once. False as in `delete`. */
  addSecret(added: {
    endpointId: string;
    workspaceId: string | undefined;
    secret: SealedText;
    overlapMs: number;
    audit: AuditInput;
  }): Promise<boolean>;
  /** Sealed to another key than this. */
  secretsSealedToOthers(keyId: string, limit: number): Promise<WebhookSecretRow[]>;
  /** Unless it has changed meanwhile. */
  storeResealed(secret: WebhookSecretRow, sealed: SealedText): Promise<void>;
}

/** A lane of an endpoint that this replica may send from, until its claim ends. */
export interface ClaimedLane {
  readonly workspaceId: string;
  readonly endpointId: string;
  readonly lane: string;
  readonly claimId: string;
}

/** The oldest of a lane that waits. */
export interface WaitingDelivery {
  readonly deliveryId: string;
  readonly eventId: string;
  readonly workspaceId: string;
  readonly type: string;
  readonly subjectId: string;
  /** JSON text of an object: further ids. */
  readonly more: string;
  readonly happenedAt: Date;
  readonly url: string;
  /** The newest first. */
  readonly sealedSecrets: readonly string[];
  /** Attempts since it was noted, or replayed. */
  readonly tries: number;
  /** How long ago the first of these was; undefined: there was none. */
  readonly triedForMs: number | undefined;
  /** How long attempts at its endpoint have failed without one success; undefined: the newest succeeded. */
  readonly endpointFailingMs: number | undefined;
}

/** What became of an attempt. */
export type AttemptVerdict =
  | { readonly kind: "delivered"; readonly status: number }
  /** Tried again after `retryAfterMs`. */
  | {
      readonly kind: "failed";
      readonly status: number;
      readonly error: string;
      readonly retryAfterMs: number;
      /** The platform's own fault: it says nothing about the endpoint. */
      readonly isOurs?: boolean;
      /** The endpoint is disabled, for this reason. */
      readonly disable?: string | undefined;
    }
  | {
      readonly kind: "dead";
      readonly status: number;
      readonly error: string;
      readonly disable?: string | undefined;
    };

export interface Forgotten {
  /** Deliveries that still waited; their endpoints count them too. */
  readonly dropped: number;
  readonly mayBeMore: boolean;
}

export interface WebhookOutboxStore {
  /** Makes deliveries of what was noted, in its order; one replica at a time does it. Returns of how many events. */
  route(limit: number): Promise<number>;
  /**
   * Lanes that are due, of enabled endpoints; at most `perEndpoint` of one are claimed at a time, by all replicas together.
   * `free`: places that this replica has. They go round the workspaces, and within one round its endpoints; whoever has few
   * goes first, and nobody gets another one once he would have more than what stays free: however much some want, there is a
   * place for who comes next.
   */
  claim(claim: {
    free: number;
    /** Places that lanes of a workspace take here already. */
    taken: ReadonlyMap<string, number>;
    perEndpoint: number;
    leaseMs: number;
  }): Promise<ClaimedLane[]>;
  /** Undefined when nothing of it waits, its endpoint is not enabled, or the claim has ended. */
  oldest(lane: ClaimedLane): Promise<WaitingDelivery | undefined>;
  /**
   * Writes down how an attempt ended. True when the claim goes on, for `leaseMs` from now, because more of the lane waits;
   * else it has ended. What is delivered counts also when the claim had ended before.
   */
  record(attempt: {
    lane: ClaimedLane;
    deliveryId: string;
    verdict: AttemptVerdict;
    leaseMs: number;
  }): Promise<boolean>;
  /** Gives a lane back; it is due again after that time. One of which nothing waits is gone. */
  release(lane: ClaimedLane, dueAfterMs: number): Promise<void>;
  /** Newest first. */
  list(query: {
    endpointId: string;
    states: readonly WebhookDeliveryState[];
    page: PageRequest;
  }): Promise<Page<WebhookDelivery>>;
  /** How many wait because of it; undefined when the endpoint has no such delivery. */
  replayOne(endpointId: string, deliveryId: string): Promise<number | undefined>;
  /** How many wait because of it, at most MAX_REPLAYED. */
  replaySince(endpointId: string, since: Date, states: readonly WebhookDeliveryState[]): Promise<number>;
  /**
   * Forgets what is older than `olderThanMs`, and what endpoints have beyond `perEndpoint`.
   * Disables endpoints for which more than `perEndpoint` wait. Bounded.
   */
  prune(bounds: { olderThanMs: number; perEndpoint: number }): Promise<Forgotten>;
  /**
   * Forgets what workspaces have beyond so many events: first the oldest that are told to everybody or were given up, then the
   * oldest that still wait. Bounded.
   */
  trim(perWorkspace: number): Promise<Forgotten>;
}
