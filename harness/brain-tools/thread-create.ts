/** `thread_create`: has another agent do something beside this one. */
import { ThreadHands } from "../../proto/gen/tendon/v1/thread_service_pb.js";
import { stringOf } from "../event-payload.ts";
import { type BrainTool, refusal } from "./brain-tool.ts";
import { CALL_WITHIN_MS, MAX_MESSAGE_CHARS, messageProblem } from "./thread-input.ts";

const SCHEMA = {
  type: "object",
  properties: {
    agent: {
      type: "string",
      description:
        'Name or id of an agent that you may call; "self" for another one like you. thread_list names them.',
    },
    message: {
      type: "string",
      description: "What it is to do. It knows nothing of your conversation: say all that it needs.",
      maxLength: MAX_MESSAGE_CHARS,
    },
    title: { type: "string", description: "A few words for people who look on.", maxLength: 500 },
    hands: {
      type: "string",
      enum: ["shared", "own"],
      description:
        "shared (default): it works in the same files as you. own: in a new, empty environment of its own.",
    },
  },
  required: ["agent", "message"],
};

export const threadCreate: BrainTool = {
  name: "thread_create",
  description:
    "Start a thread: another agent works on a task beside you, with a conversation of its own. Returns its id at once. What it says at the end of its turn comes to you as a message; thread_wait waits for that. The budget of the session covers all threads.",
  inputSchema: JSON.stringify(SCHEMA),
  async run(input, { server, sessionId, lease, eventId }, signal) {
    const agent = stringOf(input.agent);
    if (agent === "" || agent.length > 256)
      return refusal('"agent" must name an agent; thread_list shows those that you may call.');
    const problem = messageProblem(input.message);
    if (problem !== undefined) return refusal(problem);
    const request = {
      sessionId,
      lease: lease.proof,
      requestId: eventId,
      agent,
      message: stringOf(input.message),
      title: stringOf(input.title).slice(0, 500),
      hands: input.hands === "own" ? ThreadHands.OWN : ThreadHands.TREE,
    };
    const { thread } = await server.threads.createThread(request, { signal, deadlineMs: CALL_WITHIN_MS });
    return { text: `Thread ${thread?.id} works on it (agent "${thread?.agent?.spec?.name}").` };
  },
};
