/** `thread_send`: says something to a thread that this one has made, or to the one that has made it. */
import { stringOf } from "../event-payload.ts";
import { type BrainTool, refusal } from "./brain-tool.ts";
import { CALL_WITHIN_MS, MAX_MESSAGE_CHARS, messageProblem } from "./thread-input.ts";

const PARENT = "parent";

const SCHEMA = {
  type: "object",
  properties: {
    to: {
      type: "string",
      description: 'Id of a thread that you have made, or "parent" for who has made you.',
    },
    message: { type: "string", maxLength: MAX_MESSAGE_CHARS },
  },
  required: ["to", "message"],
};

export const threadSend: BrainTool = {
  name: "thread_send",
  description:
    "Send a message to one of your threads, which then goes on with its conversation, or to the agent that has made you. What you say at the end of your own turn is sent to it by itself.",
  inputSchema: JSON.stringify(SCHEMA),
  async run(input, { server, sessionId, lease, eventId }, signal) {
    const to = stringOf(input.to);
    if (to === "" || to.length > 70) return refusal('"to" must be the id of a thread, or "parent".');
    const problem = messageProblem(input.message);
    if (problem !== undefined) return refusal(problem);
    const request = {
      sessionId,
      lease: lease.proof,
      requestId: eventId,
      threadId: to === PARENT ? "" : to,
      message: stringOf(input.message),
    };
    await server.threads.sendToThread(request, { signal, deadlineMs: CALL_WITHIN_MS });
    return { text: "The message was sent." };
  },
};
