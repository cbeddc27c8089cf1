/** How the areas reach what other replicas of the server hold, and what they offer to those. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Preview } from "../../proto/gen/tendon/v1/event_pb.js";
import type {
  CommandResult,
  ConnectResponse,
  ConnectResponseSchema,
  StartTransfer,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type {
  ForwardExecutionResponse,
  ForwardExecutionResponseSchema,
  ForwardTransferRequest,
  ForwardTransferResponseSchema,
  PeerNoticeSchema,
} from "../../proto/gen/tendon/v1/peer_service_pb.js";
import type { ProxyAnswer } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { AskOptions, ProxyAsk } from "./proxy-directory.ts";
import type { OpenTransfer } from "./transfers.ts";
import type { FarEnd, FarEndWanted } from "./tunnels.ts";

export type PeerNoticeKind = NonNullable<MessageInitShape<typeof PeerNoticeSchema>["kind"]>;

export interface PeerCommand {
  readonly replicaId: string;
  readonly handAgentId: string;
  /** Of the connection that is meant. */
  readonly generation: number;
  readonly command: MessageInitShape<typeof ConnectResponseSchema>;
  /** How long the agent's answer is waited for. */
  readonly timeoutMs: number;
  readonly signal?: AbortSignal;
}

export interface PeerTransfer {
  readonly replicaId: string;
  readonly handAgentId: string;
  readonly generation: number;
  readonly command: StartTransfer;
  /** Ends the copy, also once it is open. */
  readonly signal: AbortSignal;
}

/** The other replicas. Everything here fails with a TendonError; none of it is tried again by itself. */
export interface Peers {
  /** Whether any other replica can be reached. */
  hasOthers(): boolean;
  /** "silent": alive, but nobody can reach it. "gone": not heard from lately, or never. Answered from memory. */
  standing(replicaId: string): "reachable" | "silent" | "gone";
  /**
   * Has the replica send a command to an agent that it holds; undefined for commands without an answer. NO_HAND_AGENT:
   * it does not hold that connection. UNAVAILABLE, DEADLINE_EXCEEDED.
   */
  command(request: PeerCommand): Promise<CommandResult | undefined>;
  /**
   * Has an agent that the replica holds open the stream of a copy. NO_HAND_AGENT, UNAVAILABLE, LIMIT_EXCEEDED; then
   * nothing has begun.
   */
  transfer(request: PeerTransfer): Promise<OpenTransfer>;
  /**
   * Opens the end of a tunnel that is connected to the replica. NOT_CONFIGURED when no proxy is, NO_HAND_AGENT when it
   * does not hold that agent, UNAVAILABLE, DEADLINE_EXCEEDED; else as what is asked. `signal` ends it, also once it is open.
   */
  tunnel(request: {
    readonly replicaId: string;
    readonly wanted: FarEndWanted;
    readonly signal: AbortSignal;
  }): Promise<FarEnd>;
  /** Asks a proxy that is connected to the replica. NOT_CONFIGURED when none is, UNAVAILABLE, DEADLINE_EXCEEDED. */
  askProxy(
    request: AskOptions & { readonly replicaId: string; readonly ask: ProxyAsk },
  ): Promise<ProxyAnswer>;
  /** Output and result of an execution whose agent the replica holds. NO_HAND_AGENT, UNAVAILABLE. */
  follow(request: {
    replicaId: string;
    executionKey: string;
    fromOffset: number;
    signal: AbortSignal;
  }): AsyncIterable<ForwardExecutionResponse>;
}

/** A server that reaches no other. */
export const NO_PEERS: Peers = {
  hasOthers: () => false,
  standing: () => "silent",
  command: () => Promise.reject(new Error("there are no peers")),
  transfer: () => Promise.reject(new Error("there are no peers")),
  tunnel: () => Promise.reject(new Error("there are no peers")),
  askProxy: () => Promise.reject(new Error("there are no peers")),
  follow: () => {
    throw new Error("there are no peers");
  },
};

/** What other replicas may do with the hand agents that are connected here. One hop: never passed on to a third. */
export interface HandsForPeers {
  /** NO_HAND_AGENT unless that connection stands here; else as the command. */
  command(request: {
    handAgentId: string;
    /** 0: any. */
    generation: number;
    command: ConnectResponse;
    timeoutMs: number;
  }): Promise<CommandResult | undefined>;
  /** NO_HAND_AGENT unless that connection stands here; else as the copy. */
  transfer(
    requests: AsyncIterable<ForwardTransferRequest>,
    signal: AbortSignal,
  ): AsyncGenerator<MessageInitShape<typeof ForwardTransferResponseSchema>>;
  /** NO_HAND_AGENT unless the execution's agent is connected here. */
  follow(
    executionKey: string,
    fromOffset: number,
    signal: AbortSignal,
  ): AsyncGenerator<MessageInitShape<typeof ForwardExecutionResponseSchema>>;
  /** Ends the connection of an agent that was revoked elsewhere. */
  cut(handAgentId: string, detail: string): void;
}

/** What other replicas may ask of the session area. */
export interface SessionsForPeers {
  /** Shows previews to the watchers here. Lossy, as all previews. */
  showPreviews(sessionId: string, previews: readonly Preview[]): void;
  /** Sessions with watchers here that want previews. */
  previewed(): string[];
  /** Calls `listener` when a session gets its first such watcher, or has lost its last. */
  onPreviewed(listener: (sessionId: string, isWatched: boolean) => void): () => void;
  /** The session was archived or deleted elsewhere: its watchers are told at once. */
  ended(sessionId: string): void;
}

/** Passes previews on to the replicas that have watchers of their session. Never blocks, and drops what is too much. */
export type PassPreviews = (sessionId: string, previews: readonly Preview[]) => void;
