/**
 * One execution, from its start command until the server has its result.
 *
 *   accepted  waits for its input and for the journal; nothing has run
 *   running   the tool runs; `stop` ends it
 *   finished  has its one result, which is offered until it is stored
 */
import type { ExecutionResult } from "../proto/gen/tendon/v1/hand_pb.js";
import type { OutputSpool } from "./output-spool.ts";

export interface ExecutionCommand {
  readonly key: string;
  readonly handId: string;
  readonly ownerNumber: bigint;
  readonly name: string;
  readonly timeoutMs: number;
  /** W3C `traceparent` of what the call is a part of; empty for nothing. */
  readonly traceParent: string;
}

export type ExecutionState =
  | { phase: "accepted" }
  | { phase: "running" }
  | { phase: "finished"; outputBytes: number; readResult: () => ExecutionResult };

export class Execution {
  readonly key: string;
  readonly handId: string;
  /** Absent when there is no output to give, such as after a restart of the agent. */
  readonly spool: OutputSpool | undefined;
  readonly input: LateInput | undefined;
  /** Whether a stream of it was opened before, so that the server may have some of the output. */
  wasOffered = false;
  /** Resolves when the result is there. */
  readonly finished: Promise<void>;
  private current: ExecutionState = { phase: "accepted" };
  private readonly stopper = new AbortController();
  private resolveFinished!: () => void;

  constructor(facts: {
    key: string;
    handId: string;
    spool?: OutputSpool | undefined;
    input?: LateInput | undefined;
  }) {
    this.key = facts.key;
    this.handId = facts.handId;
    this.spool = facts.spool;
    this.input = facts.input;
    this.finished = new Promise((resolve) => {
      this.resolveFinished = resolve;
    });
  }

  get state(): ExecutionState {
    return this.current;
  }

  get isFinished(): boolean {
    return this.current.phase === "finished";
  }

  /** Aborts with the reason given to `stop`. */
  get stopSignal(): AbortSignal {
    return this.stopper.signal;
  }

  /** First byte of output that can be given. */
  get firstOffset(): number {
    if (this.spool !== undefined) return this.spool.firstOffset;
    return this.current.phase === "finished" ? this.current.outputBytes : 0;
  }

  get outputBytes(): number {
    if (this.current.phase === "finished") return this.current.outputBytes;
    return this.spool?.endOffset ?? 0;
  }

  running(): void {
    if (this.current.phase === "accepted") this.current = { phase: "running" };
  }

  /** Asks the execution to end; it still ends in one result, that says what happened. */
  stop(reason: string): void {
    if (!this.isFinished) this.stopper.abort(reason);
  }

  finish(outputBytes: number, readResult: () => ExecutionResult): void {
    if (this.isFinished) return;
    this.current = { phase: "finished", outputBytes, readResult };
    this.spool?.finish();
    this.resolveFinished();
  }
}

/** An input that is too large for its start message and comes on the execution's stream. */
export class LateInput {
  private readonly expectedBytes: number;
  private parts: Uint8Array[] = [];
  private bytes = 0;
  private isComplete = false;
  private resolve!: (text: string) => void;
  readonly text: Promise<string>;

  constructor(expectedBytes: number) {
    this.expectedBytes = expectedBytes;
    this.text = new Promise((resolve) => {
      this.resolve = resolve;
    });
  }

  /** A new stream begins: the server sends the input from its start. */
  restart(): void {
    if (this.isComplete) return;
    this.parts = [];
    this.bytes = 0;
  }

  push(part: Uint8Array): void {
    if (this.isComplete) return;
    this.parts.push(part);
    this.bytes += part.byteLength;
    if (this.bytes < this.expectedBytes) return;
    this.isComplete = true;
    this.resolve(Buffer.concat(this.parts).subarray(0, this.expectedBytes).toString("utf8"));
    this.parts = [];
  }
}
