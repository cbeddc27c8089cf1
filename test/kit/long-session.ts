/**
 * A session that outgrows its model's window again and again: results are trimmed, the talk is summarised, one summary is
 * refused, one interrupted, one request too long. What the model says depends on its request alone, so that any part of the
 * log can be gone on from.
 */
import { create } from "@bufbuild/protobuf";
import { type AgentSpec, AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { eventually } from "./eventually.ts";
import {
  type Gate,
  invalidRequest,
  type MessagesRequest,
  refusal,
  type Turn,
  toolUse,
  turn,
} from "./fake-messages-api.ts";
import { type Rig, rested } from "./harness-rig.ts";
import type { ScriptedTool } from "./scripted-harness-server.ts";
import type { ScriptedSession } from "./scripted-session.ts";

export const LONG_WINDOW_TOKENS = 4_000;

export const longAgent = (context: object = {}): AgentSpec =>
  create(AgentSpecSchema, {
    name: "long",
    model: { id: "claude-test" },
    system: "Work step by step.",
    tools: [{ kind: { case: "handToolset", value: {} } }],
    loopSettings: JSON.stringify({ context: { window_tokens: LONG_WINDOW_TOKENS, ...context } }),
  });

/** As `playLongSession` has it. */
export const LONG_AGENT = longAgent({ compact: { keep_percent: 25 } });

const RESULT_CHARS = 1_600;

/** What a step gives: long, and with one word that stands in no other. */
export const LONG_TOOLS: Record<string, ScriptedTool> = {
  bash: ({ command }) => ({
    text: `ran ${command}: ${"…".repeat(100)}${"output ".repeat(RESULT_CHARS / 7)}end-of-${String(command).replace(" ", "-")}`,
  }),
};

export function isSummaryRequest({ messages }: MessagesRequest): boolean {
  return JSON.stringify(messages.at(-1)).includes("Write notes from which you will carry on");
}

/** Steps up to the newest goal that the user has set with "work to N". */
export function longTurn(request: MessagesRequest): Turn {
  const said = JSON.stringify(request.messages);
  const numbers = (pattern: RegExp) => [...said.matchAll(pattern)].map(([, n]) => Number(n));
  const step = Math.max(0, ...numbers(/step[- ](\d+)/g));
  const goal = numbers(/work to (\d+)/g).at(-1) ?? 0;
  if (isSummaryRequest(request)) {
    return turn([`<summary>The user said: work to ${goal}. All is done up to step ${step}.</summary>`]);
  }
  if (step < goal) return turn([toolUse("bash", { command: `step ${step + 1}` })]);
  return turn([`done at step ${step}`]);
}

/** Of the goals that `playLongSession` sets. */
const [FIRST_GOAL, HELD_GOAL, LAST_GOAL] = [9, 26, 28];

/**
 * `longTurn`, but the first summary is refused, one request is said to be too long, and the first summary on the way to the
 * second goal does not end while `hold` is closed.
 */
export function longScript(hold: Gate): (request: MessagesRequest, n: number) => Turn {
  let summaries = 0;
  let isHeld = false;
  return (request, n) => {
    if (n === 14) return invalidRequest("prompt is too long: 4100 tokens > 4000 maximum");
    const answer = longTurn(request);
    if (!isSummaryRequest(request)) return answer;
    summaries += 1;
    if (summaries === 1) return refusal([], "cyber");
    const isOnTheWay = JSON.stringify(request.messages).includes(`work to ${HELD_GOAL}`);
    if (isHeld || !isOnTheWay || answer.kind !== "answer" || n < 20) return answer;
    isHeld = true;
    return { ...answer, before: { end: hold.opened } };
  };
}

/** Plays it from the first word to the last; the rig's model follows `longScript(hold)`. */
export async function playLongSession(rig: Rig, hold: Gate): Promise<ScriptedSession> {
  const session = rig.talk(`work to ${FIRST_GOAL}`, LONG_AGENT);
  await rested(session, 1, 60_000);
  session.say(`work to ${HELD_GOAL}`);
  await eventually(() => rig.api.requests.at(-1)?.outcome === "pending" && isHeld(rig), { withinMs: 60_000 });
  session.send({ type: "user.interrupt", payload: {} });
  await rested(session, 2, 60_000);
  hold.open();
  session.say(`go on: work to ${LAST_GOAL}`);
  await rested(session, 3, 60_000);
  return session;
}

/** The model was asked for a summary and does not give it. */
function isHeld({ api }: Rig): boolean {
  const body = api.requests.at(-1)?.body.toString() ?? "";
  return body.includes("Write notes from which you will carry on");
}
