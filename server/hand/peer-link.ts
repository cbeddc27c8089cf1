/**
 * A hand agent's connection that another replica holds.
 *
 * A failure on the way is never an answer of the agent: commands fail with UNAVAILABLE and are asked for again by
 * whoever wanted them; what has no answer is brought to wherever the agent is by then, a bounded number of times. What
 * is still lost then, the replica that holds the agent finds in the store (see unsent-calls.ts).
 */
import { create } from "@bufbuild/protobuf";
import { isTendonError, messageOf, TendonError } from "../../kit/errors.ts";
import {
  type CommandResult,
  CommandResultSchema,
  type StartTransfer,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { OpenTransfer } from "../ports/transfers.ts";
import type { AgentCommand, AgentLink, AgentMessage } from "./agent-link.ts";
import type { HandDeps } from "./deps.ts";

export interface PeerLinkFacts {
  readonly handAgentId: string;
  readonly generation: number;
  readonly journalId: string;
  readonly replicaId: string;
}

export interface PeerLinkOptions extends PeerLinkFacts {
  readonly deps: Pick<HandDeps, "peers" | "clock" | "logger">;
  /** Brings a message that did not arrive to wherever the agent is now. */
  readonly onUndelivered: (message: AgentMessage) => void;
  /** Whether the agent is still where this link leads, as far as this replica can find out. */
  readonly stands: () => Promise<boolean>;
  /** Calls `listener` when an agent connected to this replica. */
  readonly onChange: (listener: () => void) => () => void;
}

const POST_TIMEOUT_MS = 2_000;
const MAX_POSTING = 1_024;
/** While an answer is waited for, whether the agent is still there is looked up so often. */
const LOOK_EVERY_MS = 2_000;

export class PeerLink implements AgentLink {
  readonly handAgentId: string;
  readonly generation: number;
  readonly journalId: string;
  readonly replicaId: string;
  draining = false;
  private readonly options: PeerLinkOptions;
  private posting = 0;
  private ended = false;

  constructor(options: PeerLinkOptions) {
    this.options = options;
    this.handAgentId = options.handAgentId;
    this.generation = options.generation;
    this.journalId = options.journalId;
    this.replicaId = options.replicaId;
  }

  get isOpen(): boolean {
    return !this.ended;
  }

  post(message: AgentMessage): boolean {
    if (this.ended || this.posting >= MAX_POSTING) return false;
    this.posting += 1;
    void this.send(message, POST_TIMEOUT_MS)
      .catch((error: unknown) => {
        this.options.deps.logger.info(
          { handAgentId: this.handAgentId, replicaId: this.replicaId, error: messageOf(error) },
          "a message to a hand agent did not get through another replica",
        );
        this.options.onUndelivered(message);
      })
      .finally(() => {
        this.posting -= 1;
      });
    return true;
  }

  /** Sends what has no answer, and says whether it got there. Not tried again. */
  async postOnce(message: AgentMessage): Promise<boolean> {
    if (this.ended) return false;
    return this.send(message, POST_TIMEOUT_MS).then(
      () => true,
      () => false,
    );
  }

  async command(command: AgentCommand, timeoutMs: number): Promise<CommandResult> {
    const moved = new AbortController();
    const stopWatching = this.watch(() => moved.abort());
    try {
      const answer = await this.send(command, timeoutMs, moved.signal);
      return answer ?? create(CommandResultSchema, {});
    } catch (error) {
      if (moved.signal.aborted || !passedOn(error)) {
        throw new TendonError(
          "UNAVAILABLE",
          `the way to the hand agent over another replica is closed: ${messageOf(error)}`,
        );
      }
      throw error;
    } finally {
      stopWatching();
    }
  }

  async openTransfer(command: StartTransfer, signal: AbortSignal): Promise<OpenTransfer> {
    const { replicaId, handAgentId, generation } = this;
    try {
      return await this.options.deps.peers.transfer({ replicaId, handAgentId, generation, command, signal });
    } catch (error) {
      if (isTendonError(error, "NO_HAND_AGENT")) this.ended = true;
      throw error;
    }
  }

  private async send(
    message: AgentMessage,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<CommandResult | undefined> {
    const { replicaId, handAgentId, generation } = this;
    const abort = signal === undefined ? {} : { signal };
    try {
      return await this.options.deps.peers.command({
        replicaId,
        handAgentId,
        generation,
        command: { kind: withoutInput(message) },
        timeoutMs,
        ...abort,
      });
    } catch (error) {
      if (!passedOn(error)) this.ended = true;
      throw error;
    }
  }

  /** A replica that hangs must not keep a command from an agent that has long been elsewhere. */
  private watch(moved: () => void): () => void {
    let busy = false;
    const look = () => {
      if (busy) return;
      busy = true;
      void this.options
        .stands()
        .then((stands) => {
          if (!stands) moved();
        })
        .catch(() => {}) // asked again
        .finally(() => {
          busy = false;
        });
    };
    const stopTimer = this.options.deps.clock.every(LOOK_EVERY_MS, look);
    const stopListening = this.options.onChange(look);
    return () => {
      stopTimer();
      stopListening();
    };
  }
}

/** The other replica reads the call from the store, where it is bound. */
function withoutInput(message: AgentMessage): AgentMessage {
  if (message.case !== "startExecution") return message;
  return { case: "startExecution", value: { ...message.value, input: "" } };
}

/** The agent's own failures, as the other replica saw them; everything else is about the way there. */
function passedOn(error: unknown): boolean {
  return isTendonError(error, "DEADLINE_EXCEEDED") || isTendonError(error, "LIMIT_EXCEEDED");
}
