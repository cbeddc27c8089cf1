/** Serves the stream that an agent opens for each execution: output in, the stored result confirmed. */

import type { MessageInitShape } from "@bufbuild/protobuf";
import { within } from "../../kit/clock.ts";
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type {
  ExecutionOpen,
  StreamExecutionRequest,
  StreamExecutionResponseSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { ExecutionRecord } from "../store/executions.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import type { ExecutionHub } from "./execution-hub.ts";
import { MAX_INLINE_INPUT_BYTES } from "./execution-messages.ts";
import type { AgentStream, LiveExecution } from "./live-execution.ts";

const INPUT_PIECE_BYTES = 64 * 1024;

type Response = MessageInitShape<typeof StreamExecutionResponseSchema>;

const STORED: Response = { kind: { case: "stored", value: {} } };

export class ExecutionStreams {
  private readonly deps: HandDeps;
  private readonly hub: ExecutionHub;
  private readonly conclusions: Conclusions;

  constructor(deps: HandDeps, hub: ExecutionHub, conclusions: Conclusions) {
    this.deps = deps;
    this.hub = hub;
    this.conclusions = conclusions;
  }

  async *serve(
    requests: AsyncIterable<StreamExecutionRequest>,
    handAgentId: string,
    context: RpcContext,
  ): AsyncGenerator<Response> {
    const iterator = requests[Symbol.asyncIterator]();
    const open = await this.readOpen(iterator);
    const execution = await this.bound(open, handAgentId);
    if (execution.result !== undefined) {
      yield STORED;
      return;
    }
    const live = this.hub.enter(execution);
    const stream = live.openStream(Number(open.firstOffset));
    try {
      const reading = this.read(iterator, live, stream);
      // Also ends when a waiting read never does: another stream took over, or the call is gone.
      const ended = Promise.race([
        reading,
        live.done.then(() => {}),
        aborted(stream.signal),
        aborted(context.signal),
      ]);
      ended.catch(() => {});
      reading.catch(() => {});
      yield { kind: { case: "resume", value: { offset: BigInt(stream.resumeOffset) } } };
      yield* inputOf(execution);
      await ended;
      yield STORED;
    } finally {
      live.closeStream(stream);
      this.hub.leave(live);
    }
  }

  private async readOpen(iterator: AsyncIterator<StreamExecutionRequest>): Promise<ExecutionOpen> {
    const first = await within(
      this.deps.clock,
      this.deps.timing.greetingTimeoutMs,
      iterator.next(),
      () => new TendonError("DEADLINE_EXCEEDED", "the stream was not opened"),
    );
    const kind = first.done ? undefined : first.value.kind;
    if (kind?.case !== "open") throw invalidField("open", "must be the first message");
    return kind.value;
  }

  /** NOT_FOUND unless it is bound to this agent and journal: a journal that does not know it cannot speak for it. */
  private async bound(open: ExecutionOpen, handAgentId: string): Promise<ExecutionRecord> {
    const key = open.executionKey;
    const execution = this.hub.find(key)?.execution ?? (await this.deps.store.executions.find(key));
    if (execution?.handAgentId !== handAgentId || execution.journalId !== open.journalId) {
      throw notFound("execution", key);
    }
    return execution;
  }

  private async read(
    iterator: AsyncIterator<StreamExecutionRequest>,
    live: LiveExecution,
    stream: AgentStream,
  ): Promise<void> {
    for (;;) {
      const next = await iterator.next();
      // A cut stream never becomes a result: the agent opens another.
      if (next.done) throw new TendonError("UNAVAILABLE", "the stream ended without a result; open it again");
      const { kind } = next.value;
      if (kind.case === "output") await live.accept(stream, Number(kind.value.offset), kind.value.data);
      else if (kind.case === "result") {
        failpoint("server.result_received");
        await this.conclusions.finish(live.execution, kind.value);
        return;
      } else throw invalidField("open", "only the first message may be one");
    }
  }
}

async function* inputOf({ input }: ExecutionRecord): AsyncGenerator<Response> {
  if (Buffer.byteLength(input) <= MAX_INLINE_INPUT_BYTES) return;
  const bytes = Buffer.from(input, "utf8");
  for (let start = 0; start < bytes.length; start += INPUT_PIECE_BYTES) {
    yield { kind: { case: "input", value: bytes.subarray(start, start + INPUT_PIECE_BYTES) } };
  }
}

function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const onAbort = () => reject(signal.reason);
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
  });
}
