/** What the tools for threads share (pure). */
import type { Json } from "../event-payload.ts";

export const CALL_WITHIN_MS = 15_000;
export const MAX_MESSAGE_CHARS = 100_000;

/** Undefined for a message that can be sent. */
export function messageProblem(message: Json[string]): string | undefined {
  if (typeof message !== "string" || message.trim() === "")
    return '"message" must be a text that is not empty.';
  if (message.length <= MAX_MESSAGE_CHARS) return undefined;
  return `"message" has ${message.length} characters, at most ${MAX_MESSAGE_CHARS} are sent; put long texts into a file.`;
}
