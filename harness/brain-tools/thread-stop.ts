/** `thread_stop`: ends a thread for good. */
import { stringOf } from "../event-payload.ts";
import { type BrainTool, refusal } from "./brain-tool.ts";
import { CALL_WITHIN_MS } from "./thread-input.ts";

export const threadStop: BrainTool = {
  name: "thread_stop",
  description:
    "End a thread that you have made, and those that it has made, for good: what it does is cancelled, and it takes no more messages.",
  inputSchema: `{"type":"object","properties":{"thread":{"type":"string","description":"Its id."}},"required":["thread"]}`,
  async run(input, { server, sessionId, lease }, signal) {
    const threadId = stringOf(input.thread);
    if (threadId === "" || threadId.length > 70) return refusal('"thread" must be the id of a thread.');
    const request = { threadId, sessionId, lease: lease.proof };
    await server.threads.stopThread(request, { signal, deadlineMs: CALL_WITHIN_MS });
    return { text: `Thread ${threadId} was stopped.` };
  },
};
