/** One connection of one hand agent, as this replica holds it. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Clock } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { Outbox } from "../../kit/outbox.ts";
import type {
  CommandResult,
  ConnectRequest,
  ConnectResponseSchema,
  HandReport,
  ImagesChanged,
  StartTransfer,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { MachineResources } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { OpenTransfer } from "../ports/transfers.ts";
import type { AgentCommand, AgentLink, AgentMessage } from "./agent-link.ts";
import type { AgentTransfers } from "./agent-transfers.ts";
import type { HandTiming } from "./timing.ts";

export interface AgentConnectionOptions {
  readonly handAgentId: string;
  readonly generation: number;
  readonly journalId: string;
  /** Executions that the agent's journal has: they are never started again (X1). */
  readonly journalled: Iterable<string>;
  readonly clock: Clock;
  readonly timing: HandTiming;
  /** A hand changed without a command. Called one after the other. */
  readonly onReport: (report: HandReport) => Promise<void>;
  readonly onDraining: () => void;
  /** What its machine has now. */
  readonly onResources: (resources: MachineResources) => void;
  /** What a driver of its can make hands from now. */
  readonly onImages: (changed: ImagesChanged) => void;
  readonly transfers: Pick<AgentTransfers, "start">;
  /** Ends the stream at once, whatever it waits for. */
  readonly cut: (error: TendonError) => void;
}

/** Messages that may wait for a slow connection; an agent that is further behind starts anew. */
const OUTBOX_LIMIT = 4_096;
const PACE_MS = 10;
const MAX_WAITING_COMMANDS = 1_024;
const MAX_WAITING_REPORTS = 10_000;
/** Executions whose start is remembered; a start that comes a second time comes soon after the first. */
const MAX_TOLD = 20_000;

type Response = MessageInitShape<typeof ConnectResponseSchema>;

export class AgentConnection implements AgentLink {
  readonly handAgentId: string;
  readonly generation: number;
  readonly journalId: string;
  draining = false;
  /** Hands that the agent has and that nobody knows; see the sweeper. */
  unowned: readonly string[] = [];
  readonly outbox = new Outbox<Response>(OUTBOX_LIMIT);
  private readonly options: Omit<AgentConnectionOptions, "journalled">;
  private readonly waiting = new Map<
    string,
    { resolve: (result: CommandResult) => void; reject: (error: Error) => void }
  >();
  private readonly stopHeartbeat: () => void;
  /** Executions that the agent knows, by its greeting or because it was told here; stops are marked. */
  private readonly told: Set<string>;
  private heardMs: number;
  private beatMs: number;
  private reports: Promise<void> = Promise.resolve();
  private waitingReports = 0;
  private ended = false;

  constructor({ journalled, ...options }: AgentConnectionOptions) {
    this.options = options;
    this.handAgentId = options.handAgentId;
    this.generation = options.generation;
    this.journalId = options.journalId;
    this.told = new Set(journalled);
    this.heardMs = options.clock.monotonicMs();
    this.beatMs = this.heardMs;
    this.stopHeartbeat = options.clock.every(options.timing.heartbeatEveryMs, () => this.beat());
  }

  get isOpen(): boolean {
    return !this.ended;
  }

  post(message: AgentMessage): boolean {
    if (this.ended) return false;
    // What was posted before is on its way, in order: saying it again could start a call whose result is stored by now.
    if (message.case === "startExecution" && this.hasTold("start", message.value.executionKey ?? ""))
      return true;
    if (!this.outbox.push({ kind: message })) return false;
    if (message.case === "startExecution") this.remember(toldName("start", message.value.executionKey ?? ""));
    if (message.case === "stopExecution") this.remember(toldName("stop", message.value.executionKey ?? ""));
    return true;
  }

  /** Whether the agent knows the execution, or was told here to run or to stop it. */
  hasTold(what: "start" | "stop", executionKey: string): boolean {
    return this.told.has(toldName(what, executionKey));
  }

  /** Sends many, at the pace at which the connection takes them. */
  async postAll(messages: Iterable<AgentMessage>): Promise<void> {
    for (const message of messages) {
      while (!this.ended && this.outbox.length >= OUTBOX_LIMIT / 2) {
        await this.options.clock.sleep(PACE_MS);
      }
      if (!this.post(message)) return;
    }
  }

  async command(command: AgentCommand, timeoutMs: number): Promise<CommandResult> {
    if (this.waiting.size >= MAX_WAITING_COMMANDS) {
      throw new TendonError(
        "LIMIT_EXCEEDED",
        `hand agent "${this.handAgentId}" has ${this.waiting.size} commands open`,
      );
    }
    const isTunnel = command.case === "startTunnel";
    const commandId = isTunnel ? (command.value.tunnelId ?? "") : newId("request");
    let stop = () => {};
    try {
      return await new Promise<CommandResult>((resolve, reject) => {
        this.waiting.set(commandId, { resolve, reject });
        stop = this.options.clock.after(timeoutMs, () =>
          reject(
            new TendonError(
              "DEADLINE_EXCEEDED",
              `the hand agent did not answer "${command.case}" within ${Math.round(timeoutMs)} ms`,
            ),
          ),
        );
        const message = isTunnel
          ? command
          : ({ ...command, value: { ...command.value, commandId } } as AgentMessage);
        if (!this.post(message)) reject(connectionEnded());
      });
    } finally {
      stop();
      this.waiting.delete(commandId);
    }
  }

  openTransfer(command: StartTransfer, signal: AbortSignal): Promise<OpenTransfer> {
    return this.options.transfers.start(this, command, signal);
  }

  /** Reads until the agent ends the connection or it breaks. */
  async read(requests: AsyncIterator<ConnectRequest>): Promise<void> {
    for (;;) {
      const next = await requests.next();
      if (next.done) return this.end();
      this.heardMs = this.options.clock.monotonicMs();
      this.take(next.value);
    }
  }

  /** What is queued is still sent, then the stream ends with the error, or well. Only the first call counts. */
  end(error?: TendonError): void {
    if (this.ended) return;
    this.ended = true;
    this.stopHeartbeat();
    this.outbox.end(error);
    const waiting = [...this.waiting.values()];
    for (const { reject } of waiting) reject(connectionEnded());
  }

  private remember(name: string): void {
    this.told.add(name);
    const oldest = this.told.size > MAX_TOLD ? this.told.values().next().value : undefined;
    if (oldest !== undefined) this.told.delete(oldest);
  }

  private take({ kind }: ConnectRequest): void {
    switch (kind.case) {
      case "commandResult":
        this.waiting.get(kind.value.commandId)?.resolve(kind.value);
        break;
      case "handReport":
        this.queueReport(kind.value);
        break;
      case "draining":
        this.draining = true;
        this.options.onDraining();
        break;
      case "resources":
        this.options.onResources(kind.value);
        break;
      case "imagesChanged":
        this.options.onImages(kind.value);
        break;
      case "greeting":
        this.cut(
          new TendonError("INVALID_FIELD", "greeting: only the first message may be one", {
            field: "greeting",
          }),
        );
        break;
      case "heartbeat":
      case undefined:
        break;
    }
  }

  /** The database may be slower than the agent; signs of life are read all the same. */
  private queueReport(report: HandReport): void {
    if (this.waitingReports >= MAX_WAITING_REPORTS) {
      this.cut(new TendonError("LIMIT_EXCEEDED", "too many hand reports wait to be stored"));
      return;
    }
    this.waitingReports += 1;
    this.reports = this.reports
      .then(() => this.options.onReport(report))
      .finally(() => {
        this.waitingReports -= 1;
      });
  }

  private beat(): void {
    const { clock, timing } = this.options;
    const now = clock.monotonicMs();
    const heldUp = now - this.beatMs > 2 * timing.heartbeatEveryMs;
    this.beatMs = now;
    const silentMs = now - this.heardMs;
    // Who was held up itself has signs of life waiting to be read: it listens for a beat before it judges.
    if (silentMs >= timing.heartbeatTimeoutMs && !heldUp) {
      this.cut(new TendonError("UNAVAILABLE", `nothing was heard for ${Math.round(silentMs)} ms`));
    } else {
      this.post({ case: "heartbeat", value: {} });
    }
  }

  /** Ends without waiting for what is queued: whoever should read it may be gone. */
  private cut(error: TendonError): void {
    this.end(error);
    this.options.cut(error);
  }
}

function toldName(what: "start" | "stop", executionKey: string): string {
  return what === "start" ? executionKey : `stop ${executionKey}`;
}

function connectionEnded(): TendonError {
  return new TendonError("UNAVAILABLE", "the connection to the hand agent ended");
}
