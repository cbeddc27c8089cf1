/** Puts the part together by which several replicas on one database behave as one. */
import { bindService } from "../../kit/rpc/service.ts";
import { PeerService } from "../../proto/gen/tendon/v1/peer_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { Metrics } from "../ports/metrics.ts";
import type { PassPreviews, PeerNoticeKind, Peers } from "../ports/peers.ts";
import { Interests } from "./interests.ts";
import { PeerDirectory, type PeerDirectoryDeps } from "./peer-directory.ts";
import { type PeerServiceDeps, PeerServiceHandler } from "./service.ts";

export interface PeerAreaDeps
  extends Omit<PeerDirectoryDeps, "interests">,
    Omit<PeerServiceDeps, "interests" | "sessions"> {
  readonly metrics: Metrics;
}

export interface PeerArea extends Area {
  readonly peers: Peers;
  readonly passPreviews: PassPreviews;
  /** Whether no other replica is alive, as of the last few seconds. */
  readonly isAlone: () => boolean;
  /** Tells all other replicas what was done here. Never blocks; lossy. */
  readonly tell: (notice: PeerNoticeKind) => void;
}

/** The other areas are asked only once everything is built. */
export function createPeerArea(deps: PeerAreaDeps): PeerArea {
  const interests = new Interests(deps.clock);
  const directory = new PeerDirectory({ ...deps, interests });
  const handler = new PeerServiceHandler({ ...deps, interests });
  deps.metrics.gauge("tendon_peer_replicas", "Other replicas that this one can reach.", () => directory.size);
  deps.metrics.gauge(
    "tendon_previews_wanted_elsewhere",
    "Sessions whose previews other replicas want from this one.",
    () => interests.size,
  );
  return {
    name: "peer",
    services: [bindService(PeerService, handler)],
    parts: [directory],
    peers: directory,
    passPreviews: (sessionId, previews) => directory.passPreviews(sessionId, previews),
    isAlone: () => directory.isAlone(),
    tell: (notice) => directory.tell(notice),
  };
}
