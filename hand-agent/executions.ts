/**
 * All executions of this agent.
 *
 * E-1 An id runs at most once: one that is known only gets its stream again, one that was cancelled before it came is
 *     refused, one that the server has stored is not answered at all (X1).
 * E-2 Nothing runs before its journal entry is on disk; the stream may be open before.
 * E-3 A connection that ends stops nothing. Every execution is offered on every connection until its result is stored.
 * E-4 At most `MAX_RUNNING` run, at most `MAX_KEPT` are kept; more are refused with a result.
 */
import { randomBytes } from "node:crypto";
import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { Backoff } from "../kit/backoff.ts";
import { failpoint } from "../kit/failpoint.ts";
import type { StartExecution } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { type ExecutionResult, ExecutionResultSchema } from "../proto/gen/tendon/v1/hand_pb.js";
import { Execution, type ExecutionCommand, LateInput } from "./execution.ts";
import { AGENT_RESTARTED_TEXT, notStarted, unknownOutcome } from "./execution-results.ts";
import { type RunDeps, runExecution, tombstoneText } from "./execution-run.ts";
import { type ExecutionCall, type ExecutionStreamEnd, streamExecution } from "./execution-stream.ts";
import type { Journal } from "./journal.ts";
import { OutputSpool, type SpoolBudget } from "./output-spool.ts";

/** The connection that executions are offered on. */
export interface ExecutionTunnel {
  openStream(): ExecutionCall;
  /** Aborts when the connection is over. */
  readonly signal: AbortSignal;
}

export interface ExecutionsDeps extends Omit<RunDeps, "journal"> {
  journal: Journal;
  dataDir: string;
  /** A call has ended and its processes live on. */
  leftProcesses(handId: string): void;
}

export interface ExecutionStatus {
  readonly key: string;
  readonly running: boolean;
  readonly outputBytes: number;
}

export const MAX_RUNNING = 256;
export const MAX_KEPT = 1_024;
/** Refusals are kept too until they are stored; what comes beyond this is not answered. */
const MAX_REFUSED = 4_096;
/** Larger results are read back from the journal when they are offered; so at most 80 MiB of results are in memory. */
const MAX_RESULT_IN_MEMORY_BYTES = 16 * 1024;
/** Output of all executions on disk. */
const SPOOL_BUDGET_BYTES = 8 * 1024 ** 3;
const REOPEN = { firstMs: 200, maxMs: 5_000, resetAfterMs: 10_000 };

export class Executions {
  private readonly deps: ExecutionsDeps;
  private readonly executions = new Map<string, Execution>();
  private readonly budget: SpoolBudget = { usedBytes: 0, maxBytes: SPOOL_BUDGET_BYTES };
  private readonly spoolDir: string;
  private readonly followedOn = new WeakMap<Execution, ExecutionTunnel>();
  private readonly tasks = new Set<Promise<void>>();
  private tunnel: ExecutionTunnel | undefined;
  private running = 0;
  private draining = false;
  private waiting: (() => void)[] = [];

  constructor(deps: ExecutionsDeps) {
    this.deps = deps;
    this.spoolDir = join(deps.dataDir, "output");
  }

  /** Takes up what an earlier life left: call it once the processes of that life have ended. */
  restore(): void {
    rmSync(this.spoolDir, { recursive: true, force: true });
    mkdirSync(this.spoolDir, { recursive: true, mode: 0o700 });
    const { journal, log } = this.deps;
    for (const { key, state } of journal.list()) {
      const execution = new Execution({ key, handId: "" });
      this.executions.set(key, execution);
      if (state === "finished") {
        const readResult = () => fromBinary(ExecutionResultSchema, journal.readResult(key));
        execution.finish(Number(readResult().outputBytes), readResult);
        continue;
      }
      if (state === "started") log.warn({ execution: key }, "the outcome of a call of before is unknown");
      const result =
        state === "started"
          ? unknownOutcome(AGENT_RESTARTED_TEXT)
          : notStarted("CANCELLED", tombstoneText(""));
      this.conclude(execution, result, { journalled: true });
    }
  }

  /** Offers every execution on this connection; the one before counts no more. */
  attach(tunnel: ExecutionTunnel): void {
    this.tunnel = tunnel;
    for (const execution of this.executions.values()) this.follow(execution);
  }

  start(command: StartExecution): void {
    const key = command.executionKey;
    const known = this.executions.get(key);
    if (known !== undefined) {
      this.follow(known);
      return;
    }
    if (this.deps.journal.wasForgotten(key)) {
      this.deps.log.warn({ execution: key }, "a call whose result is stored was sent again; it is not run");
      return;
    }
    if (this.draining) {
      // Not journalled, so it is handed back: the server sends it again when this agent, or its next life, connects.
      this.deps.log.info({ execution: key }, "the agent is stopping; a call is handed back");
      return;
    }
    const refusal = this.refusal();
    if (refusal !== undefined) {
      this.refuse(command, refusal);
      return;
    }
    failpoint("agent.start_received");
    const spool = new OutputSpool({
      path: join(this.spoolDir, randomBytes(8).toString("hex")),
      budget: this.budget,
      log: this.deps.log,
    });
    const input = command.inputBytes > 0n ? new LateInput(Number(command.inputBytes)) : undefined;
    const execution = new Execution({ key, handId: command.handId, spool, input });
    this.executions.set(key, execution);
    this.running += 1;
    // The journal's sync runs while the stream is opened.
    void this.run(execution, command);
    this.follow(execution);
  }

  /** Ends a call; one that was never seen is noted as never to be started (X1c). */
  async stop(key: string, reason: string): Promise<void> {
    const known = this.executions.get(key);
    if (known !== undefined) return known.stop(reason);
    const { journal, clock, log } = this.deps;
    if (journal.wasForgotten(key)) return;
    const execution = new Execution({ key, handId: "" });
    this.executions.set(key, execution);
    try {
      await journal.refuse({ key, atMs: clock.nowMs() });
    } catch (error) {
      log.error({ err: error, execution: key }, "a cancellation could not be noted");
      this.executions.delete(key);
      return;
    }
    this.conclude(execution, notStarted("CANCELLED", tombstoneText(reason)), { journalled: true });
    this.follow(execution);
  }

  /** Ends all calls, or those of one hand, and resolves when they have their results. */
  async stopAll(reason: string, handId?: string): Promise<void> {
    const affected = [...this.executions.values()].filter(
      (execution) => !execution.isFinished && (handId === undefined || execution.handId === handId),
    );
    for (const execution of affected) execution.stop(reason);
    await Promise.all(affected.map(({ finished }) => finished));
  }

  /** The server has these results. What still runs is ended: nobody wants it. */
  forget(keys: readonly string[]): void {
    for (const key of keys) {
      const execution = this.executions.get(key);
      if (execution !== undefined) void this.drop(execution, "the server does not wait for it any more");
    }
  }

  isRunning(handId: string): boolean {
    return [...this.executions.values()].some((each) => each.handId === handId && !each.isFinished);
  }

  statuses(): ExecutionStatus[] {
    return [...this.executions.values()].map((execution) => ({
      key: execution.key,
      running: !execution.isFinished,
      outputBytes: execution.outputBytes,
    }));
  }

  /** New calls are not taken from now on. */
  drain(): void {
    this.draining = true;
  }

  /** Resolves when nothing runs, or rejects when the signal aborts. */
  whenIdle(signal: AbortSignal): Promise<void> {
    return this.when(() => this.running === 0, signal);
  }

  /** Resolves when the server has every result, or rejects when the signal aborts. */
  whenStored(signal: AbortSignal): Promise<void> {
    return this.when(() => this.executions.size === 0, signal);
  }

  /** Resolves when the streams of connections that are over have ended too. */
  async settled(): Promise<void> {
    await Promise.all(this.tasks);
  }

  private refusal(): ExecutionResult | undefined {
    if (this.running < MAX_RUNNING && this.executions.size < MAX_KEPT) return undefined;
    const text = `The hand agent runs ${this.running} calls already and takes no more; the call was not started.`;
    return notStarted("LIMIT_EXCEEDED", text);
  }

  private refuse({ executionKey: key, handId }: StartExecution, result: ExecutionResult): void {
    if (this.executions.size >= MAX_KEPT + MAX_REFUSED) {
      this.deps.log.error({ execution: key }, "a call is not answered: too many wait for the server");
      return;
    }
    const execution = new Execution({ key, handId });
    this.executions.set(key, execution);
    this.conclude(execution, result, { journalled: false });
    this.follow(execution);
  }

  private async run(execution: Execution, message: StartExecution): Promise<void> {
    const command: ExecutionCommand = {
      key: message.executionKey,
      handId: message.handId,
      ownerNumber: message.ownerNumber,
      name: message.name,
      timeoutMs: Number(message.timeoutMs),
      traceParent: message.traceParent,
    };
    const { result, journalled, leftProcesses } = await runExecution(
      this.deps,
      execution,
      command,
      message.input,
    );
    this.running -= 1;
    this.conclude(execution, result, { journalled });
    if (leftProcesses) this.deps.leftProcesses(message.handId);
  }

  private conclude(
    execution: Execution,
    result: ExecutionResult,
    { journalled }: { journalled: boolean },
  ): void {
    const { journal, log } = this.deps;
    const { key } = execution;
    let readResult = () => result;
    try {
      if (journalled) {
        const encoded = toBinary(ExecutionResultSchema, result);
        journal.finish(key, encoded);
        if (encoded.length > MAX_RESULT_IN_MEMORY_BYTES)
          readResult = () => fromBinary(ExecutionResultSchema, journal.readResult(key));
      }
    } catch (error) {
      log.error({ err: error, execution: key }, "a result is kept in memory only");
    }
    failpoint("agent.result_journalled");
    execution.finish(Number(result.outputBytes), readResult);
    this.wake();
  }

  /** Keeps a stream of this execution open on the current connection. E-3. */
  private follow(execution: Execution): void {
    const { tunnel } = this;
    if (tunnel === undefined || tunnel.signal.aborted || this.followedOn.get(execution) === tunnel) return;
    this.followedOn.set(execution, tunnel);
    const task = this.streamOn(tunnel, execution).finally(() => this.tasks.delete(task));
    this.tasks.add(task);
  }

  private async streamOn(tunnel: ExecutionTunnel, execution: Execution): Promise<void> {
    const { clock, journal, log } = this.deps;
    const backoff = new Backoff(clock, REOPEN);
    while (!tunnel.signal.aborted) {
      backoff.connected();
      const end = await streamOnce(tunnel, execution, journal.id);
      if (end.kind === "stored") {
        failpoint("agent.result_acked");
        return this.drop(execution, "");
      }
      if (end.kind === "not_wanted") {
        log.warn(
          { execution: execution.key },
          "the server knows nothing of this call; it is ended and dropped",
        );
        return this.drop(execution, "the server knows nothing of it");
      }
      if (tunnel.signal.aborted) return;
      // Also what a server does that wants earlier output again.
      const facts = { err: end.error, execution: execution.key };
      log.info(facts, "the stream of a call broke off; it is opened again");
      await clock.sleep(backoff.nextDelayMs(), tunnel.signal).catch(() => {});
    }
  }

  private async drop(execution: Execution, reason: string): Promise<void> {
    execution.stop(reason);
    await execution.finished;
    if (this.executions.get(execution.key) !== execution) return;
    this.executions.delete(execution.key);
    this.deps.journal.forget(execution.key);
    await execution.spool?.discard();
    this.wake();
  }

  private async when(condition: () => boolean, signal: AbortSignal): Promise<void> {
    while (!condition()) {
      signal.throwIfAborted();
      await new Promise<void>((resolve, reject) => {
        const abort = () => reject(signal.reason);
        signal.addEventListener("abort", abort, { once: true });
        this.waiting.push(() => {
          signal.removeEventListener("abort", abort);
          resolve();
        });
      });
    }
  }

  private wake(): void {
    const waiting = this.waiting;
    this.waiting = [];
    for (const resolve of waiting) resolve();
  }
}

async function streamOnce(
  tunnel: ExecutionTunnel,
  execution: Execution,
  journalId: string,
): Promise<ExecutionStreamEnd> {
  try {
    return await streamExecution(tunnel.openStream(), execution, journalId);
  } catch (error) {
    return { kind: "broken", error }; // the connection is closed already
  }
}
