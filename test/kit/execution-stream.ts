/** Reads what Execute answers. */

import type { ExecutionResult } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { ExecuteResponse } from "../../proto/gen/tendon/v1/hand_service_pb.js";

export interface Ran {
  readonly hand: string | undefined;
  readonly attached: boolean | undefined;
  /** All output, which must come without gaps. */
  readonly output: string;
  readonly firstOffset: number | undefined;
  readonly result: ExecutionResult;
}

/** Everything up to the result. Throws the stream's error, or when a piece of output is missing or comes twice. */
export async function collectExecution(
  stream: AsyncIterable<ExecuteResponse>,
  onOutput: () => void = () => {},
): Promise<Ran> {
  const pieces: Buffer[] = [];
  let end: number | undefined;
  let firstOffset: number | undefined;
  let hand: string | undefined;
  let attached: boolean | undefined;
  let result: ExecutionResult | undefined;
  for await (const { kind } of stream) {
    if (kind.case === "bound") {
      hand = kind.value.handId;
      attached = kind.value.attached;
    } else if (kind.case === "output") {
      const offset = Number(kind.value.offset);
      firstOffset ??= offset;
      if (end !== undefined && offset !== end) throw new Error(`output jumped from ${end} to ${offset}`);
      end = offset + kind.value.data.length;
      pieces.push(Buffer.from(kind.value.data));
      onOutput();
    } else if (kind.case === "result") result = kind.value;
  }
  if (result === undefined) throw new Error("the stream ended without a result");
  return { hand, attached, output: Buffer.concat(pieces).toString(), firstOffset, result };
}

/** The text blocks of a result. */
export function textOfResult(result: ExecutionResult): string {
  return (JSON.parse(result.content) as { text: string }[]).map((block) => block.text).join("\n");
}

/** A call that ends when the test says so. */
export function gate<T>(): { open(value: T): void; readonly opened: Promise<T> } {
  let open!: (value: T) => void;
  const opened = new Promise<T>((resolve) => {
    open = resolve;
  });
  return { open, opened };
}
