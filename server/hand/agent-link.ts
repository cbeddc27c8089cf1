/** How the rest of the area reaches a hand agent, wherever its connection is held. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type {
  CommandResult,
  ConnectResponseSchema,
  ParkCommandSchema,
  ProvisionCommandSchema,
  ReleaseCommandSchema,
  StartTransfer,
  StartTunnelSchema,
  SyncFilesCommandSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { OpenTransfer } from "../ports/transfers.ts";
import type { HandAgentRecord } from "../store/hand-agents.ts";

export type AgentMessage = NonNullable<MessageInitShape<typeof ConnectResponseSchema>["kind"]>;

/** A command that the agent answers; its id is given by the link, but for a tunnel, whose own id it is. */
export type AgentCommand =
  | { readonly case: "provision"; readonly value: MessageInitShape<typeof ProvisionCommandSchema> }
  | { readonly case: "release"; readonly value: MessageInitShape<typeof ReleaseCommandSchema> }
  | { readonly case: "park"; readonly value: MessageInitShape<typeof ParkCommandSchema> }
  | { readonly case: "syncFiles"; readonly value: MessageInitShape<typeof SyncFilesCommandSchema> }
  | { readonly case: "startTunnel"; readonly value: MessageInitShape<typeof StartTunnelSchema> };

/** One connection of one agent, here or at another replica. It stands until it ends; what was sent before may have arrived or not. */
export interface AgentLink {
  readonly handAgentId: string;
  readonly generation: number;
  /** Journal that the agent's greeting named. */
  readonly journalId: string;
  /** The agent takes no new hands and calls. */
  readonly draining: boolean;
  /** Sends what has no answer. False when the connection has ended. Never waits. */
  post(message: AgentMessage): boolean;
  /**
   * Sends a command and waits for its answer. UNAVAILABLE when the connection ended first, DEADLINE_EXCEEDED after
   * `timeoutMs`, LIMIT_EXCEEDED when too many commands wait already.
   */
  command(command: AgentCommand, timeoutMs: number): Promise<CommandResult>;
  /**
   * Has the agent open the stream of a copy. UNAVAILABLE or NO_HAND_AGENT when it cannot be reached, LIMIT_EXCEEDED;
   * then nothing has begun.
   */
  openTransfer(command: StartTransfer, signal: AbortSignal): Promise<OpenTransfer>;
}

export interface AgentLinks {
  /** The agent's connection, if this replica holds it or has used it a short while ago. Asks nobody. */
  find(handAgentId: string): AgentLink | undefined;
  /** The connection that this record of the agent speaks of; undefined when it is not online or out of reach. */
  reach(agent: HandAgentRecord): AgentLink | undefined;
  /** As `find`, and looks it up when that knows none. */
  locate(handAgentId: string): Promise<AgentLink | undefined>;
  /** Calls `listener` when a connection came or went, or a place may have become free. */
  onChange(listener: () => void): () => void;
  /** Tells the listeners. */
  changed(): void;
}
