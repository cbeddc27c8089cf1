/** Compares what an agent says it has with what the store says it should have, when it connects (X1, H2). */
import { messageOf } from "../../kit/errors.ts";
import type { HandAgentGreeting, HandReport } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { ExecutionRecord } from "../store/executions.ts";
import type { HandRecord } from "../store/hands.ts";
import type { AgentConnection } from "./agent-connection.ts";
import type { AgentMessage } from "./agent-link.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import { startMessage, stopMessage } from "./execution-messages.ts";
import type { HandEndings } from "./hand-endings.ts";
import { parkedEvent } from "./hand-events.ts";
import { leftProcessesText } from "./hand-messages.ts";
import type { Provisioner } from "./provisioner.ts";

/** Executions that are looked at when an agent connects; the rest is found when these are done. */
const MAX_OPEN_EXECUTIONS = 10_000;
const FORGET_BATCH = 1_000;

export class Reconciler {
  private readonly deps: HandDeps;
  private readonly endings: HandEndings;
  private readonly conclusions: Conclusions;
  private readonly provisioner: Provisioner;

  constructor(
    deps: HandDeps,
    parts: { endings: HandEndings; conclusions: Conclusions; provisioner: Provisioner },
  ) {
    this.deps = deps;
    this.endings = parts.endings;
    this.conclusions = parts.conclusions;
    this.provisioner = parts.provisioner;
  }

  /** Safe to do again; a failure leaves the rest to the agent's next connection and the sweeper. */
  async greet(connection: AgentConnection, greeting: HandAgentGreeting): Promise<void> {
    const journalled = new Set(greeting.executions.map((execution) => execution.executionKey));
    const knows = (execution: ExecutionRecord) =>
      execution.journalId === greeting.journalId && !journalled.has(execution.executionKey);
    await this.compareHands(connection, greeting, knows);
    await this.compareExecutions(connection, greeting, journalled);
  }

  /** A hand changed without a command. */
  async report(handAgentId: string, report: HandReport): Promise<void> {
    const hand = await this.deps.store.hands.find(report.handId);
    if (hand === undefined || hand.handAgentId !== handAgentId) return;
    if (hand.state === "lost" || hand.state === "released") return;
    try {
      // What takes so long, for whoever looks meanwhile.
      if (hand.state === "provisioning" && report.state === HandState.PROVISIONING && report.detail !== "")
        await this.deps.store.hands.setDetail(hand.handId, report.detail);
      else await this.apply(hand, report, () => false);
    } catch (error) {
      this.deps.logger.warn(
        { hand: hand.handId, error: messageOf(error) },
        "a hand report could not be stored",
      );
    }
  }

  private async compareHands(
    connection: AgentConnection,
    greeting: HandAgentGreeting,
    neverStarted: (execution: ExecutionRecord) => boolean,
  ): Promise<void> {
    const has = new Map(greeting.hands.map((report) => [report.handId, report]));
    for (const hand of await this.deps.store.hands.ofAgent(connection.handAgentId)) {
      const report = has.get(hand.handId);
      has.delete(hand.handId);
      if (hand.destroyPending) {
        // Releasing a hand that is not there is well answered too.
        void this.endings.destroy(hand).catch(() => {});
      } else if (hand.state === "provisioning") {
        void this.provisioner.ensure(hand).catch(() => {});
      } else if (report === undefined) {
        const why = "its hand agent came back without it";
        await this.endings.lose(hand, why, { part: "hand_agent", reason: "WORKSPACE_LOST" }, neverStarted);
      } else {
        await this.tellOwner(connection, hand, report);
        await this.apply(hand, report, neverStarted);
      }
    }
    await this.nameStrangers(connection, [...has.keys()]);
  }

  /** It was not there when the hand was handed over (H6). */
  private async tellOwner(connection: AgentConnection, hand: HandRecord, report: HandReport): Promise<void> {
    const { handId } = hand;
    const ownerNumber = BigInt(hand.ownerNumber);
    if (report.ownerNumber > ownerNumber) {
      // Only a database that was set back knows less: whoever it says is the owner goes on under the agent's number.
      await this.deps.store.hands.raiseOwner(handId, Number(report.ownerNumber));
      return;
    }
    if (ownerNumber <= 1n || report.ownerNumber >= ownerNumber) return;
    connection.post({ case: "ownerChanged", value: { handId, ownerNumber } });
  }

  /** Hands that the store has as ended are destroyed; those that it never had are named to the agent (H1). */
  private async nameStrangers(connection: AgentConnection, handIds: readonly string[]): Promise<void> {
    if (handIds.length === 0) return;
    const known = await this.deps.store.hands.known(handIds);
    for (const handId of handIds.filter((id) => known.has(id))) {
      const hand = await this.deps.store.hands.find(handId);
      if (hand?.handAgentId === connection.handAgentId) void this.endings.destroy(hand).catch(() => {});
    }
    const unowned = handIds.filter((id) => !known.has(id));
    connection.unowned = unowned;
    if (unowned.length > 0) connection.post({ case: "unownedHands", value: { handIds: unowned } });
  }

  private async apply(
    hand: HandRecord,
    report: HandReport,
    neverStarted: (execution: ExecutionRecord) => boolean,
  ): Promise<void> {
    if (report.state === HandState.LOST || report.state === HandState.RELEASED) {
      const why = report.detail || "its hand agent has lost it";
      return this.endings.lose(hand, why, { part: "sandbox", reason: "WORKSPACE_LOST" }, neverStarted);
    }
    if (report.state !== HandState.READY && report.state !== HandState.PARKED) return;
    const parked = report.state === HandState.PARKED;
    const change = await this.deps.store.hands.report({
      handId: hand.handId,
      handAgentId: hand.handAgentId!,
      state: parked ? "parked" : "ready",
      stateDetail: report.detail,
      leftProcesses: leftProcessesText(report.leftProcesses),
      event: parked ? parkedEvent(hand, report.detail) : undefined,
    });
    this.conclusions.announce(change?.advance);
  }

  private async compareExecutions(
    connection: AgentConnection,
    greeting: HandAgentGreeting,
    journalled: ReadonlySet<string>,
  ): Promise<void> {
    const { executions } = this.deps.store;
    const open = await executions.openOfAgent(connection.handAgentId, MAX_OPEN_EXECUTIONS);
    await this.conclusions.giveUp(
      open.filter((execution) => execution.journalId !== greeting.journalId),
      "its hand agent came back without its journal",
    );
    const messages: AgentMessage[] = [];
    for (const execution of open.filter(({ journalId }) => journalId === greeting.journalId)) {
      if (execution.stopReason !== undefined) messages.push(stopMessage(execution, execution.stopReason));
      // The agent's journal decides: an execution that it has is not run again (X1b), one with a tombstone never is.
      if (!journalled.has(execution.executionKey)) messages.push(startMessage(execution));
    }
    await connection.postAll(messages);
    await this.forget(connection, greeting);
  }

  /** What the agent still keeps and the store has ended, or never had: its journal entries may go. */
  private async forget(connection: AgentConnection, { executions }: HandAgentGreeting): Promise<void> {
    for (let index = 0; index < executions.length; index += FORGET_BATCH) {
      const batch = executions.slice(index, index + FORGET_BATCH);
      const keys = batch.map(({ executionKey }) => executionKey);
      const open = await this.deps.store.executions.openKeys(connection.handAgentId, keys);
      const ended = batch.filter(({ executionKey }) => !open.has(executionKey));
      if (ended.length === 0) continue;
      const stops = ended
        .filter(({ running }) => running)
        .map(
          ({ executionKey }): AgentMessage => ({
            case: "stopExecution",
            value: { executionKey, reason: "the server has ended it" },
          }),
        );
      const executionKeys = ended.map(({ executionKey }) => executionKey);
      await connection.postAll([...stops, { case: "forgetExecutions", value: { executionKeys } }]);
    }
  }
}
