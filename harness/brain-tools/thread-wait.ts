/** `thread_wait`: waits until threads rest, without anybody holding the session meanwhile. */
import { countOf, stringsOf } from "../event-payload.ts";
import { type BrainTool, refusal } from "./brain-tool.ts";
import { CALL_WITHIN_MS } from "./thread-input.ts";

const MAX_TIMEOUT_S = 7 * 24 * 3_600;
const MAX_THREADS = 1_000;

const SCHEMA = {
  type: "object",
  properties: {
    threads: {
      type: "array",
      items: { type: "string" },
      maxItems: MAX_THREADS,
      description: "Ids of threads that you have made. Left out: all of them.",
    },
    until: {
      type: "string",
      enum: ["all", "any"],
      description: "all (default): until each has ended its turn. any: until the first one has.",
    },
    timeout_seconds: {
      type: "number",
      maximum: MAX_TIMEOUT_S,
      description: "Then the call ends even if they work on. Left out: one day.",
    },
  },
};

export const threadWait: BrainTool = {
  name: "thread_wait",
  description:
    "Wait until your threads have ended their turns. Says how each of them stands; what they said last comes as messages of their own.",
  inputSchema: JSON.stringify(SCHEMA),
  async run(input, { server, sessionId, lease, eventId }, signal) {
    const seconds = countOf(input.timeout_seconds);
    if (seconds > MAX_TIMEOUT_S) return refusal(`"timeout_seconds" may be at most ${MAX_TIMEOUT_S}.`);
    const threadIds = stringsOf(input.threads);
    if (threadIds.length > MAX_THREADS) return refusal(`"threads" may have at most ${MAX_THREADS} ids.`);
    const request = {
      sessionId,
      lease: lease.proof,
      callId: eventId,
      threadIds,
      any: input.until === "any",
      timeoutMs: BigInt(Math.ceil(seconds * 1000)),
    };
    const { pending, text } = await server.threads.waitForThreads(request, {
      signal,
      deadlineMs: CALL_WITHIN_MS,
    });
    return pending ? { pending: true } : { text };
  },
};
