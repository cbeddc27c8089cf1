/**
 * The contract of a tool that the brain runs itself: about its session, its hands, its memory, its threads.
 *
 * Order: the call's `agent.tool_use` event, with `"runs_in":"brain"`, is in the log before `run` begins (intent before
 * effect), and permissions and confirmations hold as for any other tool. What `run` gives is appended by the runner as the
 * call's one `agent.tool_result` (X3). Calls of one answer run side by side.
 *
 * Again: when the harness dies between the effect and the recorded result, the next one runs the call once more. So every
 * effect must be one that does nothing the second time: use the event id as `request_id`.
 *
 * Failures: a call to the server that failed in a way that passes may be thrown, and `run` is called again after a while.
 * Any other failure that carries a reason becomes an error result with its message, so the message must hold no secret and
 * say what the model can do. What is expected to go wrong is better given as a result with `isError`.
 *
 * Bounds: `run` must end by itself. Texts are cut as those of hands are; content blocks that are too large are an error.
 */
import type { Clock } from "../../kit/clock.ts";
import type { Logger } from "../../kit/log.ts";
import type { Agent } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { SessionResource } from "../../proto/gen/tendon/v1/session_pb.js";
import type { Json } from "../event-payload.ts";
import type { Lease } from "../lease.ts";
import type { ServerClients } from "../server-clients.ts";
import type { SessionView } from "../session-view.ts";

export interface BrainTool {
  /** As agents and the model name it: letters, digits and `_`; the server keeps a list of these names. */
  readonly name: string;
  readonly description: string;
  /** JSON Schema of the input: JSON text of one object with `type: "object"`. */
  readonly inputSchema: string;
  /**
   * `input` is what the model wrote: nobody has compared it with the schema. The signal aborts when a client interrupts,
   * the lease is over or the program stops; what comes of `run` then is dropped.
   */
  run(input: Json, call: BrainCall, signal: AbortSignal): Promise<BrainToolResult>;
}

/** What a tool may know and use. */
export interface BrainCall {
  /** Of the call's event: the request id of whatever it does. */
  readonly eventId: string;
  readonly sessionId: string;
  readonly agent: Agent;
  /** What the session was given. */
  readonly resources: readonly SessionResource[];
  /** The session's log, as far as it is known here; a tool reads and never changes it. */
  readonly view: SessionView;
  readonly server: ServerClients;
  /** `lease.proof` goes along with every call to the server. */
  readonly lease: Lease;
  readonly clock: Clock;
  /** For operators; no secrets, no payloads. */
  readonly log: Logger;
}

export type BrainToolResult =
  /**
   * The server has taken the call over: it appends the result some time, also while nobody holds the session, which rests
   * meanwhile. The call is run again after a crash, and whenever the session has gone on for another reason.
   */
  | { readonly pending: true }
  | { readonly text: string; readonly isError?: boolean }
  /** Content blocks as the model API has them in tool results. */
  | { readonly content: readonly Json[]; readonly isError: boolean };

/** An error result that tells the model what to do otherwise. */
export function refusal(text: string): BrainToolResult {
  return { text, isError: true };
}
