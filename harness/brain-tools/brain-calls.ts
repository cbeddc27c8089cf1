/** Runs the calls that the brain runs itself, and says what their results are. A call that was run before is run again: its effects know it by its event id. */
import { Backoff } from "../../kit/backoff.ts";
import { isTendonError, messageOf } from "../../kit/errors.ts";
import { isObject, parseObject } from "../event-payload.ts";
import { judgeFailure, MAX_BROKEN } from "../server-failure.ts";
import type { OpenCall } from "../session-state.ts";
import { type BrainCall, type BrainTool, type BrainToolResult, refusal } from "./brain-tool.ts";
import { boundedContent } from "./result-content.ts";

export interface BrainCallsOptions extends Omit<BrainCall, "eventId"> {
  readonly tools: ReadonlyMap<string, BrainTool>;
}

/** The payload fields of a result. */
export interface BrainResult {
  readonly content: readonly object[];
  readonly isError: boolean;
  /** There is none yet: the server appends it. */
  readonly isPending?: true;
}

const PENDING: BrainResult = { content: [], isError: false, isPending: true };

const RETRY = { firstMs: 50, maxMs: 2_000, resetAfterMs: 10_000 };

export class BrainCalls {
  private readonly options: BrainCallsOptions;

  constructor(options: BrainCallsOptions) {
    this.options = options;
  }

  /** Rejects with the signal's reason when that aborts, and with LeaseEnded when the server says that the lease is over. */
  async run(call: OpenCall, signal: AbortSignal): Promise<BrainResult> {
    const tool = this.options.tools.get(call.name);
    const result =
      tool === undefined
        ? refusal(`No part of this installation can run "${call.name}".`)
        : (unknownField(tool, call) ?? (await this.repeat(tool, call, signal)));
    if ("pending" in result) return PENDING;
    const content = "text" in result ? [{ type: "text", text: result.text }] : result.content;
    return boundedContent(content, result.isError === true);
  }

  private async repeat(tool: BrainTool, call: OpenCall, signal: AbortSignal): Promise<BrainToolResult> {
    const { tools: _, ...known } = this.options;
    const { clock, lease, log } = known;
    const backoff = new Backoff(clock, RETRY);
    let broken = 0;
    for (;;) {
      try {
        return await tool.run(parseObject(call.input), { ...known, eventId: call.eventId }, signal);
      } catch (error) {
        signal.throwIfAborted();
        const verdict = judgeFailure(error);
        if (verdict === "over") lease.end(messageOf(error));
        lease.signal.throwIfAborted();
        broken = verdict === "broken" ? broken + 1 : 0;
        if (verdict === "final" || broken >= MAX_BROKEN) {
          // What has no reason is a bug: its text stays inside.
          if (isTendonError(error) && verdict === "final") return refusal(error.message);
          log.error({ err: error, tool: tool.name }, "a tool of the brain failed");
          return refusal(`"${tool.name}" failed with an internal error.`);
        }
      }
      await clock.sleep(backoff.nextDelayMs(), signal);
    }
  }
}

/** A field that a tool does not have would be passed over, and the tool do what was not meant: give back another hand, say. */
function unknownField(tool: BrainTool, call: OpenCall): BrainToolResult | undefined {
  const { properties } = parseObject(tool.inputSchema);
  const known = isObject(properties) ? Object.keys(properties) : [];
  const unknown = Object.keys(parseObject(call.input)).find((field) => !known.includes(field));
  if (unknown === undefined) return undefined;
  const fields = known.length === 0 ? "It takes none." : `Its fields: ${known.join(", ")}.`;
  return refusal(`"${tool.name}" has no field ${JSON.stringify(unknown.slice(0, 64))}. ${fields}`);
}
