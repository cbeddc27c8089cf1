/** A copy's bytes on their way between a caller and a hand agent, wherever that is connected. */
import type { TransferEnd } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";

/** `end` is the last part, in either direction. */
export type TransferPart =
  | { readonly case: "chunk"; readonly value: Uint8Array }
  | { readonly case: "end"; readonly value: TransferEnd };

/** The agent has opened the copy's stream. */
export interface OpenTransfer {
  /**
   * To be called once: sends what `inputs` gives, and gives what the agent sends, at the pace at which it is read. Its
   * last part is the agent's `end`. Throws UNAVAILABLE when the stream broke. Leaving the loop early ends the copy, and
   * so does an error of `inputs`, which is thrown here too.
   */
  run(inputs: AsyncIterable<TransferPart>): AsyncGenerator<TransferPart>;
  /** Ends the copy; for whoever opened it and does not run it after all. May be repeated. */
  close(): void;
}
