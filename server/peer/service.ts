/** PeerService: what other replicas ask of this one. Nothing is passed on to a third (one hop at most). */
import { invalidField } from "../../kit/errors.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import type {
  AnnounceWatchedRequest,
  ForwardCommandRequest,
  ForwardExecutionRequest,
  ForwardNoticesRequest,
  ForwardPreviewsRequest,
  ForwardProxyAskRequest,
  ForwardTransferRequest,
  ForwardTunnelRequest,
  PeerNotice,
  PeerService,
} from "../../proto/gen/tendon/v1/peer_service_pb.js";
import type { HandsForPeers, SessionsForPeers } from "../ports/peers.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { TunnelStreams } from "../ports/tunnels.ts";
import type { Interests } from "./interests.ts";
import { WIRE_SPARE_MS } from "./peer-replica.ts";

export interface PeerServiceDeps {
  readonly hands: () => HandsForPeers;
  readonly sessions: () => SessionsForPeers;
  readonly proxies: () => Pick<ProxyDirectory, "forgetSession" | "askHere">;
  readonly tunnels: () => Pick<TunnelStreams, "fromPeer">;
  /** A holder on this replica, if there is one, is told that its lease is over. */
  readonly loseLease: (sessionId: string, detail: string) => void;
  readonly interests: Interests;
}

/** For callers that set no deadline. */
const DEFAULT_TIMEOUT_MS = 60_000;
const MAX_TIMEOUT_MS = 3_600_000;

export class PeerServiceHandler implements ServiceImplementation<typeof PeerService> {
  private readonly deps: PeerServiceDeps;

  constructor(deps: PeerServiceDeps) {
    this.deps = deps;
  }

  async forwardCommand({ handAgentId, generation, command }: ForwardCommandRequest, context: RpcContext) {
    const leftMs = (context.deadlineMs ?? DEFAULT_TIMEOUT_MS + WIRE_SPARE_MS) - WIRE_SPARE_MS;
    const timeoutMs = Math.min(Math.max(1, leftMs), MAX_TIMEOUT_MS);
    const request = { handAgentId, generation: Number(generation), command: command!, timeoutMs };
    const result = await this.deps.hands().command(request);
    return result === undefined ? {} : { result };
  }

  forwardExecution({ executionKey, fromOffset }: ForwardExecutionRequest, context: RpcContext) {
    return this.deps.hands().follow(executionKey, Number(fromOffset), context.signal);
  }

  forwardTransfer(requests: AsyncIterable<ForwardTransferRequest>, context: RpcContext) {
    return this.deps.hands().transfer(requests, context.signal);
  }

  forwardTunnel(requests: AsyncIterable<ForwardTunnelRequest>, context: RpcContext) {
    return this.deps.tunnels().fromPeer(requests, context);
  }

  async forwardPreviews({ sessionId, previews }: ForwardPreviewsRequest) {
    this.deps.sessions().showPreviews(sessionId, previews);
    return {};
  }

  async announceWatched(request: AnnounceWatchedRequest) {
    return { startOver: !this.deps.interests.take(request) };
  }

  async forwardProxyAsk({ kind }: ForwardProxyAskRequest, context: RpcContext) {
    if (kind.case === undefined) throw invalidField("kind", "says nothing that this replica knows");
    const leftMs = (context.deadlineMs ?? DEFAULT_TIMEOUT_MS + WIRE_SPARE_MS) - WIRE_SPARE_MS;
    const timeoutMs = Math.min(Math.max(1, leftMs), DEFAULT_TIMEOUT_MS);
    const { signal } = context;
    return { answer: await this.deps.proxies().askHere(kind, { timeoutMs, signal }) };
  }

  async forwardNotices({ notices }: ForwardNoticesRequest) {
    for (const notice of notices) this.act(notice);
    return {};
  }

  private act({ kind }: PeerNotice): void {
    switch (kind.case) {
      case "handAgentRevoked":
        this.deps.hands().cut(kind.value.handAgentId, kind.value.detail);
        break;
      case "sessionEnded":
        this.deps.sessions().ended(kind.value.sessionId);
        this.deps.proxies().forgetSession(kind.value.sessionId);
        break;
      case "leaseWithdrawn":
        this.deps.loseLease(kind.value.sessionId, kind.value.detail);
        break;
      // A newer replica may tell of what this one does not know.
      case undefined:
        break;
    }
  }
}
