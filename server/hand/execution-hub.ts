/** The running executions that this replica has to do with, by key. */
import { create } from "@bufbuild/protobuf";
import type { Clock } from "../../kit/clock.ts";
import type { TendonError } from "../../kit/errors.ts";
import { PreviewOutputSchema, PreviewSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import type { ExecutionResult } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { SessionLog } from "../ports/session-log.ts";
import type { ExecutionRecord } from "../store/executions.ts";
import { LiveExecution } from "./live-execution.ts";
import { OutputPreviews } from "./output-previews.ts";

export interface ExecutionHubOptions {
  readonly clock: Clock;
  readonly readerStallMs: number;
  readonly log: Pick<SessionLog, "publishPreviews">;
}

export class ExecutionHub {
  private readonly options: ExecutionHubOptions;
  private readonly live = new Map<string, LiveExecution>();
  private entered: (live: LiveExecution) => void = () => {};
  private finished: (live: LiveExecution) => void = () => {};

  constructor(options: ExecutionHubOptions) {
    this.options = options;
  }

  /** The entry of an execution without a result, made if there is none. `leave` it when done. */
  enter(execution: ExecutionRecord): LiveExecution {
    const known = this.live.get(execution.executionKey);
    if (known !== undefined) return known;
    const { clock, readerStallMs } = this.options;
    const live = new LiveExecution({ execution, clock, readerStallMs, previews: this.previewsOf(execution) });
    this.live.set(execution.executionKey, live);
    this.entered(live);
    return live;
  }

  find(executionKey: string): LiveExecution | undefined {
    return this.live.get(executionKey);
  }

  /** Forgets the entry when nobody uses it. */
  leave(live: LiveExecution): void {
    const { executionKey } = live.execution;
    if (live.isIdle && this.live.get(executionKey) === live) this.live.delete(executionKey);
  }

  /** Its result is stored: those who follow it get it, and it is forgotten. */
  finish(executionKey: string, result: ExecutionResult): void {
    const live = this.live.get(executionKey);
    this.live.delete(executionKey);
    if (live === undefined) return;
    live.finish(result);
    this.finished(live);
  }

  /** Those that are followed here but whose agent does not talk to this replica about them. */
  silent(): LiveExecution[] {
    return [...this.live.values()].filter((live) => !live.isStreaming);
  }

  /** Calls `listener` with every entry that has got its result. */
  onFinish(listener: (live: LiveExecution) => void): void {
    this.finished = listener;
  }

  /** Calls `listener` with every entry that is made. */
  onEnter(listener: (live: LiveExecution) => void): void {
    this.entered = listener;
  }

  sendAway(error: TendonError): void {
    for (const live of this.live.values()) live.sendAway(error);
  }

  get bufferedBytes(): number {
    let bytes = 0;
    for (const live of this.live.values()) bytes += live.bufferedBytes;
    return bytes;
  }

  get size(): number {
    return this.live.size;
  }

  private previewsOf(execution: ExecutionRecord): OutputPreviews | undefined {
    const { sessionId, executionId, answersToolUse } = execution;
    if (sessionId === undefined || !answersToolUse) return undefined;
    const { clock, log } = this.options;
    return new OutputPreviews(executionId, clock, (output) =>
      log.publishPreviews(sessionId, [
        create(PreviewSchema, { kind: { case: "output", value: create(PreviewOutputSchema, output) } }),
      ]),
    );
  }
}
