/** What the services whose streams carry tunnels ask of the tunnel area. Each gives what the caller is sent. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { TendonError } from "../../kit/errors.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { TunnelPart } from "../../kit/tunnel/tunnel-part.ts";
import type {
  StreamTunnelRequest,
  StreamTunnelResponseSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type {
  ForwardTunnelRequest,
  ForwardTunnelResponseSchema,
  ForwardTunnelStartSchema,
} from "../../proto/gen/tendon/v1/peer_service_pb.js";
import type {
  AskTunnel,
  OpenTunnelRequest,
  OpenTunnelResponseSchema,
} from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { Principal } from "./principal.ts";

/** The call that carries one end; `fail` ends it also while its caller does not read. */
export type TunnelCall = Pick<RpcContext, "signal" | "fail">;

export interface TunnelStreams {
  /** HandAgentService.StreamTunnel. */
  fromAgent(
    requests: AsyncIterable<StreamTunnelRequest>,
    handAgentId: string,
    call: TunnelCall,
  ): AsyncGenerator<MessageInitShape<typeof StreamTunnelResponseSchema>>;
  /** ProxyService.OpenTunnel. */
  fromProxy(
    requests: AsyncIterable<OpenTunnelRequest>,
    call: TunnelCall,
    principal: Principal,
  ): AsyncGenerator<MessageInitShape<typeof OpenTunnelResponseSchema>>;
  /** PeerService.ForwardTunnel: never passed on to a third replica. */
  fromPeer(
    requests: AsyncIterable<ForwardTunnelRequest>,
    call: TunnelCall,
  ): AsyncGenerator<MessageInitShape<typeof ForwardTunnelResponseSchema>>;
  /** The proxy's connection ended: its tunnels end, whatever their own connection looks like. */
  proxyGone(instanceId: string): void;
}

/** What a proxy is asked: all of AskTunnel. */
export type TunnelAsk = Omit<AskTunnel, "$typeName" | "$unknown">;

/** A proxy of this replica that was asked for its end of a tunnel. */
export interface AskedProxy {
  readonly instanceId: string;
  /** Resolves when it takes the tunnel; rejects with the TendonError that it does not. */
  readonly accepted: Promise<void>;
}

/** An end of a tunnel that another replica has opened. */
export interface FarEnd {
  /** What comes from there; read once. */
  readonly parts: AsyncIterator<TunnelPart>;
  readonly call: TunnelCall;
  /** Resolves when there is room for more. */
  send(part: TunnelPart): Promise<void>;
  /** Both sides have sent their `end`. */
  finish(): void;
}

/** Which end another replica is to open. */
export type FarEndWanted =
  | { readonly ask: TunnelAsk }
  | { readonly start: MessageInitShape<typeof ForwardTunnelStartSchema> };

/** A server that leads no tunnels. */
export const NO_TUNNELS: Pick<TunnelStreams, "fromAgent"> = {
  // biome-ignore lint/correctness/useYield: refuses before the first message
  async *fromAgent() {
    throw new TendonError("NOT_CONFIGURED", "this server leads no tunnels", { part: "tunnel" });
  },
};
