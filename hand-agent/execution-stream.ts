/**
 * One stream of one execution: says what the agent has, hears from where the server wants it, sends output until the
 * result, and ends when the server has stored that.
 *
 * T1 Output goes out in order and without gaps from the offset that the server named, or from the first byte that is left.
 *    The first stream of an execution starts at byte 0 without asking: the server can have nothing yet.
 * T2 The result is the last message and is sent only after all output.
 * T3 The end of a stream changes nothing about the execution; only `stored` does.
 */

import { isTendonError } from "../kit/errors.ts";
import { failpoint } from "../kit/failpoint.ts";
import type { BidiCall } from "../kit/rpc/client.ts";
import type {
  StreamExecutionRequestSchema,
  StreamExecutionResponseSchema,
} from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { Execution } from "./execution.ts";

export type ExecutionCall = BidiCall<
  typeof StreamExecutionRequestSchema,
  typeof StreamExecutionResponseSchema
>;

export type ExecutionStreamEnd =
  /** The server has the result. */
  | { kind: "stored" }
  /** The server knows of no such execution of this agent and journal. */
  | { kind: "not_wanted" }
  /** The connection or the server broke off; open another one. */
  | { kind: "broken"; error: unknown };

/** Output is sent in pieces of at most this size. */
const CHUNK_BYTES = 64 * 1024;

/** Runs the stream to its end. Never rejects. */
export async function streamExecution(
  call: ExecutionCall,
  execution: Execution,
  journalId: string,
): Promise<ExecutionStreamEnd> {
  const ended = new AbortController();
  const resume = deferred<number>();
  const sending = send(call, execution, journalId, resume.promise, ended.signal);
  let failure: unknown = new Error("the server ended the stream");
  sending.catch((error) => {
    failure = error;
    call.cancel();
  });
  let stored = false;
  try {
    execution.input?.restart();
    for await (const { kind } of call.responses) {
      if (kind.case === "resume") resume.resolve(Number(kind.value.offset));
      else if (kind.case === "input") execution.input?.push(kind.value);
      else if (kind.case === "stored") stored = true;
    }
  } catch (error) {
    failure = error;
  } finally {
    ended.abort(failure);
    resume.resolve(0);
    execution.spool?.readerAt(undefined);
  }
  await sending.catch(() => {});
  if (stored) return { kind: "stored" };
  if (isTendonError(failure, "NOT_FOUND")) return { kind: "not_wanted" };
  return { kind: "broken", error: failure };
}

async function send(
  call: ExecutionCall,
  execution: Execution,
  journalId: string,
  resume: Promise<number>,
  signal: AbortSignal,
): Promise<void> {
  const { firstOffset } = execution;
  const isNews = !execution.wasOffered && firstOffset === 0;
  execution.wasOffered = true;
  await call.send({
    kind: {
      case: "open",
      value: { executionKey: execution.key, journalId, firstOffset: BigInt(firstOffset) },
    },
  });
  let offset = isNews ? 0 : await resume;
  const { spool } = execution;
  while (spool !== undefined) {
    spool.readerAt(offset);
    const piece = await spool.read(offset, CHUNK_BYTES, signal);
    if (piece === undefined) break;
    await call.send({ kind: { case: "output", value: { offset: BigInt(piece.offset), data: piece.data } } });
    offset = piece.offset + piece.data.byteLength;
  }
  await unlessAborted(execution.finished, signal);
  if (execution.state.phase !== "finished") return;
  await call.send({ kind: { case: "result", value: execution.state.readResult() } });
  failpoint("agent.result_sent");
  call.end();
}

function unlessAborted(promise: Promise<void>, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    promise.then(resolve, reject);
  });
}

function deferred<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}
