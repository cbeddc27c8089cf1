/** What is alive around the database: servers, and the harnesses and proxies that are connected to them. */
import type { ConnectedHarness, ConnectedProxy } from "../../proto/gen/tendon/v1/admin_service_pb.js";

/** A replica, or what is connected to one, that was not seen for so long counts as gone. */
export const SEEN_WITHIN_MS = 30_000;

/** A server that lives has left a sign of life within this time: two of its heartbeats (replica.ts). */
export const BEATS_WITHIN_MS = 10_000;

export interface ReplicaRow {
  readonly replicaId: string;
  readonly build: string;
  /** Where other replicas reach it; empty when they do not. */
  readonly peerUrl: string;
  /** Public halves of the keys that it signs session tokens with: a JWK set as JSON text. */
  readonly publicKeys: string;
}

export interface HarnessRow {
  readonly instanceId: string;
  readonly replicaId: string;
  readonly build: string;
  readonly loops: readonly string[];
  readonly capacity: number;
  readonly modelSource: string;
}

/** Tools of the web that a proxy runs. */
export interface WebAbilities {
  readonly fetch: boolean;
  readonly search: boolean;
}

export interface ProxyRow {
  readonly instanceId: string;
  readonly replicaId: string;
  readonly build: string;
  readonly url: string;
  /** Newest first. */
  readonly sealingKeys: readonly { readonly keyId: string; readonly publicJwk: string }[];
  readonly web: WebAbilities;
}

/** What is alive, as `/healthz` and GetStatus tell it. */
export interface Presence {
  /** Postgres' version. */
  readonly databaseVersion: string;
  readonly replicas: number;
  readonly harnesses: ConnectedHarness[];
  readonly proxies: ConnectedProxy[];
  /** Of the workspace, or of all. */
  readonly handAgentsOnline: number;
  /** How hands are kept apart, as the agents' drivers say; each text once. */
  readonly isolation: string[];
}

/** Where the installation's own programs listen. */
export interface OwnUrls {
  /** Of proxies whose replica is alive. */
  readonly proxies: readonly Pick<ProxyRow, "url" | "replicaId" | "web">[];
  /** Of replicas that are alive and have one. */
  readonly peers: readonly string[];
}

/** Keys that secrets may be sealed to. */
export interface PublishedKeys {
  /** Key ids of each proxy whose replica is alive, newest first. */
  readonly connected: readonly (readonly string[])[];
  /** All that proxies ever published, newest first, at most 100. */
  readonly published: readonly { readonly keyId: string; readonly publicJwk: string }[];
}

export interface ReplicaStore {
  /** Announces a replica; again for the same id replaces what was known. */
  announce(replica: ReplicaRow): Promise<void>;
  /** A sign of life; forgets replicas that were not seen for a day. False when the row is gone: announce again. */
  heartbeat(replicaId: string): Promise<boolean>;
  /** A replica that stops. Its public keys stay as long as its tokens may be shown. */
  retire(replicaId: string): Promise<void>;
  /** The replicas that were seen lately, without this one. */
  others(replicaId: string): Promise<Pick<ReplicaRow, "replicaId" | "peerUrl">[]>;
  /** JWK sets of all replicas whose tokens may still be shown, each as JSON text. */
  publicKeys(): Promise<string[]>;

  /** Also replaces an older connection of the same instance, on any replica. */
  harnessConnected(harness: HarnessRow): Promise<void>;
  /** A sign of life with the number of sessions that it has. */
  harnessSeen(instanceId: string, replicaId: string, sessions: number): Promise<void>;
  /** Does nothing when the instance is connected elsewhere by now. */
  harnessGone(instanceId: string, replicaId: string): Promise<void>;

  /** Also replaces an older connection of the same instance, and remembers its sealing keys for good. */
  proxyConnected(proxy: ProxyRow): Promise<void>;
  /** Does nothing when the instance is connected elsewhere by now. */
  proxyGone(instanceId: string, replicaId: string): Promise<void>;

  proxyUrls(): Promise<OwnUrls>;
  sealingKeys(): Promise<PublishedKeys>;

  presence(workspaceId: string | undefined): Promise<Presence>;
}
