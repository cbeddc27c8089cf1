/** The other replicas: who is alive and can be reached, as the database says, looked up once a second. */
import type { Clock } from "../../kit/clock.ts";
import { messageOf, TendonError } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import type { Preview } from "../../proto/gen/tendon/v1/event_pb.js";
import type { PeerCommand, PeerNoticeKind, Peers, PeerTransfer, SessionsForPeers } from "../ports/peers.ts";
import type { ReplicaStore } from "../store/replicas.ts";
import type { Interests } from "./interests.ts";
import { PeerReplica } from "./peer-replica.ts";

export interface PeerDirectoryDeps {
  readonly replicas: Pick<ReplicaStore, "others">;
  readonly replicaId: string;
  /** What this replica shows the others; undefined: it reaches none. */
  readonly key: string | undefined;
  readonly caFile: string | undefined;
  readonly clientCertificate: { certFile: string; keyFile: string } | undefined;
  readonly sessions: () => SessionsForPeers;
  readonly interests: Interests;
  readonly clock: Clock;
  readonly log: Logger;
}

const LOOK_EVERY_MS = 1_000;
/** A look that found nobody is believed so long. */
const ALONE_FOR_MS = 3 * LOOK_EVERY_MS;
const MAX_PEERS = 64;

export class PeerDirectory implements Peers, Service {
  readonly name = "replicas";
  private readonly deps: PeerDirectoryDeps;
  private readonly peers = new Map<string, PeerReplica>();
  private silent = new Set<string>();
  /** When the database last said that there is no other replica. */
  private aloneSinceMs = Number.NEGATIVE_INFINITY;
  private readonly ends: (() => void)[] = [];
  private looking: Promise<void> | undefined;
  private stopped = false;

  constructor(deps: PeerDirectoryDeps) {
    this.deps = deps;
  }

  get size(): number {
    return this.peers.size;
  }

  async start(): Promise<void> {
    const { clock, sessions } = this.deps;
    this.ends.push(
      sessions().onPreviewed((sessionId, isWatched) => {
        for (const peer of this.peers.values()) peer.announcer.changed(sessionId, isWatched);
      }),
    );
    this.ends.push(clock.every(LOOK_EVERY_MS, () => void this.look()));
    await this.look();
  }

  async stop(): Promise<void> {
    this.stopped = true;
    for (const end of this.ends.splice(0)) end();
    await this.looking;
    for (const peer of this.peers.values()) peer.close();
    this.peers.clear();
  }

  hasOthers(): boolean {
    return this.peers.size > 0;
  }

  /** Whether no other replica is alive, as far as a look of just now can tell. */
  isAlone(): boolean {
    return this.deps.clock.monotonicMs() - this.aloneSinceMs < ALONE_FOR_MS;
  }

  standing(replicaId: string): "reachable" | "silent" | "gone" {
    // Who reaches nobody does not know who is gone.
    if (this.deps.key === undefined || this.silent.has(replicaId)) return "silent";
    return this.peers.has(replicaId) ? "reachable" : "gone";
  }

  async command(request: PeerCommand) {
    return this.find(request.replicaId).command(request);
  }

  async askProxy(request: Parameters<Peers["askProxy"]>[0]) {
    return this.find(request.replicaId).askProxy(request);
  }

  async tunnel(request: Parameters<Peers["tunnel"]>[0]) {
    return this.find(request.replicaId).tunnel(request);
  }

  async transfer(request: PeerTransfer) {
    return this.find(request.replicaId).transfer(request);
  }

  follow(request: Parameters<Peers["follow"]>[0]): ReturnType<Peers["follow"]> {
    return this.find(request.replicaId).follow(request);
  }

  /** To the replicas that have watchers of the session. */
  passPreviews(sessionId: string, previews: readonly Preview[]): void {
    for (const [replicaId, peer] of this.peers) {
      if (this.deps.interests.wants(replicaId, sessionId)) peer.previews.push(sessionId, previews);
    }
  }

  /** To all other replicas. */
  tell(notice: PeerNoticeKind): void {
    for (const peer of this.peers.values()) peer.notices.push(notice);
  }

  private find(replicaId: string): PeerReplica {
    const peer = this.peers.get(replicaId);
    if (peer === undefined) throw new TendonError("UNAVAILABLE", `replica "${replicaId}" is gone`);
    return peer;
  }

  private look(): Promise<void> {
    this.looking ??= this.lookOnce().finally(() => {
      this.looking = undefined;
    });
    return this.looking;
  }

  private async lookOnce(): Promise<void> {
    try {
      const others = await this.deps.replicas.others(this.deps.replicaId);
      if (this.stopped) return;
      this.aloneSinceMs = others.length === 0 ? this.deps.clock.monotonicMs() : Number.NEGATIVE_INFINITY;
      if (this.deps.key === undefined) return;
      const urls = new Map(others.map(({ replicaId, peerUrl }) => [replicaId, peerUrl]));
      for (const [replicaId, peer] of this.peers) {
        if (urls.get(replicaId) === peer.url) continue;
        peer.close();
        this.peers.delete(replicaId);
      }
      this.silent = new Set(others.filter(({ peerUrl }) => peerUrl === "").map(({ replicaId }) => replicaId));
      for (const [replicaId, url] of urls) {
        if (url !== "" && !this.peers.has(replicaId) && this.peers.size < MAX_PEERS) this.add(replicaId, url);
      }
    } catch (error) {
      // What was known stands: a replica that is gone is found by its failures.
      this.deps.log.debug({ error: messageOf(error) }, "the other replicas could not be read");
    }
  }

  private add(replicaId: string, url: string): void {
    const { caFile, clientCertificate, clock, key, replicaId: ownReplicaId, sessions } = this.deps;
    this.peers.set(
      replicaId,
      new PeerReplica({
        replicaId,
        ownReplicaId,
        url,
        caFile,
        clientCertificate,
        token: () => key,
        // Replicas are neighbours: what leads out of the network is not between them.
        proxy: {},
        previewed: () => sessions().previewed(),
        clock,
      }),
    );
  }
}
