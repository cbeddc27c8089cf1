/** Single questions on the Messages API, over the client that the loop has. */
import type { TextAnswer, TextModel, TextQuestion } from "../../text-model.ts";
import type { ModelFailure, ProposedResponse } from "../loop.ts";
import { jsonText, textBlock } from "./blocks.ts";
import { type ModelClient, ModelFailed } from "./model-client.ts";
import { BrokenAnswer, ResponseReader } from "./response-reader.ts";

export function createTextModel(client: Pick<ModelClient, "stream">, defaultModel: string): TextModel {
  return { defaultModel, ask: (question, signal) => ask(client, question, signal) };
}

async function ask(
  client: Pick<ModelClient, "stream">,
  question: TextQuestion,
  signal: AbortSignal,
): Promise<TextAnswer> {
  const reader = new ResponseReader({ newEventId: () => "", preview: () => {}, callBegan: () => {} });
  try {
    const { maxSilenceMs } = question;
    for await (const event of client.stream(bodyOf(question), maxSilenceMs, signal)) reader.take(event);
    const response = reader.finish();
    return { kind: "answer", text: textOf(response), stop: response.stop, usage: response.usage };
  } catch (error) {
    if (error instanceof ModelFailed)
      return { kind: "failed", failure: error.failure, isTooLong: error.tooLong !== undefined };
    if (error instanceof BrokenAnswer && !signal.aborted) return { kind: "failed", failure: broken(error) };
    throw error;
  }
}

function bodyOf({ model, maxTokens, system, text }: TextQuestion): string {
  const fields = [
    `"model":${JSON.stringify(model)}`,
    `"max_tokens":${maxTokens}`,
    `"stream":true`,
    `"system":${jsonText(system)}`,
    `"messages":[{"role":"user","content":[${textBlock(text)}]}]`,
  ];
  return `{${fields.join(",")}}`;
}

function textOf({ events }: ProposedResponse): string {
  if (events.some(({ kind }) => kind === "call")) return "";
  return events.flatMap((event) => (event.kind === "message" ? event.texts : [])).join("");
}

function broken(error: BrokenAnswer): ModelFailure {
  return {
    type: "model_request_failed_error",
    message: `The model's answer broke off: ${error.message}.`,
    maxAttempts: Number.POSITIVE_INFINITY,
    retryAfterMs: undefined,
    began: true,
  };
}
