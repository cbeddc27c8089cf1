/** The loop on the Messages API: plans a request from the log, streams the answer, proposes what is in it. */
import type { Loop, LoopOutcome, LoopTurn } from "../loop.ts";
import { type ModelClient, ModelFailed } from "./model-client.ts";
import { modelOf, plan } from "./plan.ts";
import { BrokenAnswer, ResponseReader } from "./response-reader.ts";

export interface ClaudeLoopOptions {
  readonly client: Pick<ModelClient, "stream">;
  /** For agents that name no model. */
  readonly defaultModel: string;
}

export function createClaudeLoop({ client, defaultModel }: ClaudeLoopOptions): Loop {
  return {
    name: "claude",
    model: (agent) => modelOf(agent, defaultModel),
    run: (turn, signal) => ask(client, defaultModel, turn, signal),
  };
}

async function ask(
  client: ClaudeLoopOptions["client"],
  defaultModel: string,
  turn: LoopTurn,
  signal: AbortSignal,
): Promise<LoopOutcome> {
  const { agent, tools, history } = turn;
  const { body } = plan({ agent, tools, history, defaultModel });
  const reader = new ResponseReader(turn.newEventId, (preview) => turn.preview(preview));
  try {
    for await (const event of client.stream(body, turn.maxSilenceMs, signal)) reader.take(event);
    return { kind: "response", response: reader.finish() };
  } catch (error) {
    if (error instanceof ModelFailed) return { kind: "failed", failure: error.failure };
    if (error instanceof BrokenAnswer && !signal.aborted) return { kind: "failed", failure: broken(error) };
    throw error;
  }
}

function broken(error: BrokenAnswer) {
  return {
    type: "model_request_failed_error" as const,
    message: `The model's answer broke off: ${error.message}.`,
    maxAttempts: Number.POSITIVE_INFINITY,
    retryAfterMs: undefined,
    began: true,
  };
}
