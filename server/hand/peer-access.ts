/** What other replicas may do with the agents that are connected here, and with nothing else: one hop at most. */
import { TendonError } from "../../kit/errors.ts";
import type {
  CommandResult,
  ConnectResponse,
  StartExecution,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { ForwardTransferRequest } from "../../proto/gen/tendon/v1/peer_service_pb.js";
import type { HandsForPeers } from "../ports/peers.ts";
import type { TransferPart } from "../ports/transfers.ts";
import type { ExecutionRecord } from "../store/executions.ts";
import type { AgentConnection } from "./agent-connection.ts";
import type { AgentConnections } from "./agent-connections.ts";
import type { HandDeps } from "./deps.ts";
import type { ExecutionHub } from "./execution-hub.ts";
import { startMessage } from "./execution-messages.ts";
import type { LiveExecution } from "./live-execution.ts";
import { fromStoredText } from "./results.ts";

/** A call may end while those on other replicas who want its output are not here yet: it is kept so long, and so much. */
const ENDINGS_KEPT_MS = 5_000;
const MAX_ENDINGS = 1_000;
const MAX_ENDINGS_BYTES = 32 * 1024 * 1024;

export class PeerAccess implements HandsForPeers {
  private readonly deps: HandDeps;
  private readonly connections: AgentConnections;
  private readonly hub: ExecutionHub;
  private readonly endings = new Map<string, { live: LiveExecution; stop: () => void }>();
  private endingsBytes = 0;
  /** Calls that another replica had started here. */
  private readonly forwarded = new WeakSet<LiveExecution>();

  constructor(deps: HandDeps, connections: AgentConnections, hub: ExecutionHub) {
    this.deps = deps;
    this.connections = connections;
    this.hub = hub;
    hub.onFinish((live) => this.ended(live));
  }

  async command({
    handAgentId,
    generation,
    command,
    timeoutMs,
  }: Parameters<HandsForPeers["command"]>[0]): Promise<CommandResult | undefined> {
    const connection = this.connectionOf(handAgentId, generation);
    const { kind } = command;
    switch (kind.case) {
      case "provision":
        if (connection.draining) throw notHeld(handAgentId);
        return connection.command(kind, timeoutMs);
      case "release":
      case "park":
      case "syncFiles":
        return connection.command(kind, timeoutMs);
      case "startExecution":
        await this.start(connection, kind.value);
        return undefined;
      case "stopExecution":
      case "ownerChanged":
        if (!connection.post(kind)) throw notHeld(handAgentId);
        return undefined;
      default:
        throw notForPeers(kind);
    }
  }

  /** The call is taken from the store, which says where it is bound: the other replica's word is not needed. */
  private async start(
    connection: AgentConnection,
    { executionKey, traceParent }: Pick<StartExecution, "executionKey" | "traceParent">,
  ): Promise<void> {
    const execution = await this.deps.store.executions.find(executionKey);
    const { handAgentId, journalId } = connection;
    if (execution?.handAgentId !== handAgentId || execution.journalId !== journalId) {
      throw notHeld(handAgentId);
    }
    if (execution.result !== undefined) return;
    this.forwarded.add(this.hub.enter(execution));
    if (!connection.post(startMessage(execution, traceParent))) throw notHeld(handAgentId);
  }

  async *transfer(
    requests: AsyncIterable<ForwardTransferRequest>,
    signal: AbortSignal,
  ): ReturnType<HandsForPeers["transfer"]> {
    const iterator = requests[Symbol.asyncIterator]();
    const first = await iterator.next();
    const kind = first.done ? undefined : first.value.kind;
    if (kind?.case !== "start" || kind.value.transfer === undefined) {
      throw new TendonError("INVALID_FIELD", "start: must be the first message", { field: "start" });
    }
    const { handAgentId, generation, transfer } = kind.value;
    const connection = this.connectionOf(handAgentId, Number(generation));
    const open = await connection.openTransfer(transfer, signal);
    const leave = () => open.close();
    signal.addEventListener("abort", leave, { once: true });
    try {
      yield { kind: { case: "opened", value: {} } };
      for await (const part of open.run(partsOf(iterator))) yield { kind: part };
    } finally {
      signal.removeEventListener("abort", leave);
      open.close();
    }
  }

  async *follow(
    executionKey: string,
    fromOffset: number,
    signal: AbortSignal,
  ): ReturnType<HandsForPeers["follow"]> {
    const live = this.endings.get(executionKey)?.live ?? (await this.liveOf(executionKey));
    if (!("read" in live)) {
      yield { kind: { case: "result", value: fromStoredText(live.result!) } };
      return;
    }
    const left = new AbortController();
    const check = () => {
      if (live.result === undefined && !this.holds(live.execution)) {
        left.abort(notHeld(live.execution.handAgentId ?? ""));
      }
    };
    const stopListening = this.connections.onChange(check);
    try {
      check();
      for await (const { offset, data } of live.read(fromOffset, AbortSignal.any([signal, left.signal]))) {
        yield { kind: { case: "output", value: { offset: BigInt(offset), data } } };
      }
      yield { kind: { case: "result", value: await live.done } };
    } finally {
      stopListening();
      this.hub.leave(live);
    }
  }

  cut(handAgentId: string, detail: string): void {
    this.connections.cut(handAgentId, new TendonError("HAND_AGENT_REVOKED", detail));
  }

  private async liveOf(executionKey: string): Promise<LiveExecution | ExecutionRecord> {
    const known = this.hub.find(executionKey);
    if (known !== undefined) return known;
    const execution = await this.deps.store.executions.find(executionKey);
    if (execution === undefined) throw new TendonError("NOT_FOUND", "the execution is not known");
    // It may have ended meanwhile, with its output kept.
    const ending = this.endings.get(executionKey)?.live;
    if (ending !== undefined) return ending;
    if (execution.result !== undefined) return execution;
    if (!this.holds(execution)) throw notHeld(execution.handAgentId ?? "");
    return this.hub.enter(execution);
  }

  private holds({ handAgentId = "", journalId }: ExecutionRecord): boolean {
    return this.connections.find(handAgentId)?.journalId === journalId;
  }

  private connectionOf(handAgentId: string, generation: number): AgentConnection {
    const connection = this.connections.find(handAgentId);
    if (connection === undefined || (generation !== 0 && connection.generation !== generation)) {
      throw notHeld(handAgentId);
    }
    return connection;
  }

  private ended(live: LiveExecution): void {
    if (!this.deps.peers.hasOthers()) return;
    // Whoever reads it here has it; who else wants it may be on the way.
    if (this.forwarded.has(live) || !live.hasReaders) this.keepEnding(live);
  }

  private keepEnding(live: LiveExecution): void {
    const { executionKey } = live.execution;
    this.forgetEnding(executionKey);
    const stop = this.deps.clock.after(ENDINGS_KEPT_MS, () => this.forgetEnding(executionKey));
    this.endings.set(executionKey, { live, stop });
    this.endingsBytes += live.bufferedBytes;
    for (const oldest of this.endings.keys()) {
      if (this.endings.size <= MAX_ENDINGS && this.endingsBytes <= MAX_ENDINGS_BYTES) break;
      this.forgetEnding(oldest);
    }
  }

  private forgetEnding(executionKey: string): void {
    const ending = this.endings.get(executionKey);
    if (ending === undefined) return;
    ending.stop();
    this.endings.delete(executionKey);
    this.endingsBytes -= ending.live.bufferedBytes;
  }
}

/** Ends well only after `end`: requests that break off are an error of theirs. */
async function* partsOf(requests: AsyncIterator<ForwardTransferRequest>): AsyncGenerator<TransferPart> {
  for (;;) {
    const next = await requests.next();
    if (next.done) return;
    const { kind } = next.value;
    if (kind.case !== "chunk" && kind.case !== "end") {
      throw new TendonError("INVALID_FIELD", "start: only the first message may be one", { field: "start" });
    }
    yield kind;
    if (kind.case === "end") return;
  }
}

function notHeld(handAgentId: string): TendonError {
  return new TendonError("NO_HAND_AGENT", `this replica does not hold hand agent "${handAgentId}"`, {
    hand_agent_id: handAgentId,
  });
}

function notForPeers(kind: ConnectResponse["kind"]): TendonError {
  return new TendonError("INVALID_FIELD", `command: "${kind.case}" is not for other replicas to send`, {
    field: "command",
  });
}
