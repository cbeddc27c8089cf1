/** Ends executions: a result is stored and told, once, whoever asks (X3). */
import { messageOf } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import type { ExecutionResult } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { CallRecord, Concluded, ExecutionRecord } from "../store/executions.ts";
import type { LeaseClaim } from "../store/hands.ts";
import type { LogAdvance } from "../store/session-append.ts";
import type { HandDeps } from "./deps.ts";
import type { ExecutionHub } from "./execution-hub.ts";
import { acceptResult, fromStoredText, resultEvent, storedText, unknownResult } from "./results.ts";

export class Conclusions {
  private readonly deps: HandDeps;
  private readonly hub: ExecutionHub;

  constructor(deps: HandDeps, hub: ExecutionHub) {
    this.deps = deps;
    this.hub = hub;
  }

  /**
   * Stores what became of a bound execution and tells its session and those who follow it. Returns the result that
   * stands, which is the first; undefined when the execution was deleted with its session.
   */
  async finish(execution: ExecutionRecord, given: ExecutionResult): Promise<ExecutionResult | undefined> {
    const result = acceptResult(given, execution.notice);
    const concluded = await this.deps.store.executions.finish({
      execution,
      result: storedText(result),
      event: resultEvent(execution, result),
    });
    failpoint("server.result_stored");
    const standing =
      concluded?.kind === "existing" && concluded.result !== undefined
        ? fromStoredText(concluded.result)
        : result;
    // The brain waits for its answer; whoever watches comes after it.
    this.hub.finish(execution.executionKey, standing);
    if (concluded?.kind === "stored") this.announce(concluded.advance);
    return concluded && standing;
  }

  /** Ends a call that was never bound. */
  async refuse(call: CallRecord, result: ExecutionResult, lease: LeaseClaim | undefined): Promise<Concluded> {
    const concluded = await this.deps.store.executions.refuse({
      call,
      result: storedText(result),
      event: resultEvent(call, result),
      lease,
    });
    if (concluded.kind === "stored") this.announce(concluded.advance);
    return concluded;
  }

  /** Nobody can say what became of these. One failure does not keep the others from ending. */
  async giveUp(executions: readonly ExecutionRecord[], why: string): Promise<void> {
    for (const execution of executions) {
      try {
        await this.finish(execution, unknownResult(why));
      } catch (error) {
        // The sweeper comes by again.
        this.deps.logger.warn(
          { execution: execution.executionKey, error: messageOf(error) },
          "an execution could not be ended; it is tried again",
        );
      }
    }
  }

  announce(advance: LogAdvance | undefined): void {
    if (advance === undefined) return;
    const { added, ...told } = advance;
    this.deps.log.announce(told, added);
  }
}
