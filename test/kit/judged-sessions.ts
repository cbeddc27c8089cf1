/** Sessions in which more than one model speaks, for logs that are replayed: a grader of outcomes, and a judge of calls. */
import { create } from "@bufbuild/protobuf";
import { type AgentSpec, AgentSpecSchema, Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import {
  type MessagesRequest,
  overloaded,
  type Script,
  type Turn,
  toolUse,
  turn,
} from "./fake-messages-api.ts";
import { JUDGING_MODEL, type Rig, rested } from "./harness-rig.ts";
import { define, isGraders, verdict } from "./outcome-session.ts";
import type { ScriptedTool } from "./scripted-harness-server.ts";
import type { ScriptedSession } from "./scripted-session.ts";

export const JUDGED_TOOLS: Record<string, ScriptedTool> = {
  bash: ({ command }) => ({ text: `ran ${command}` }),
};

function agent(name: string, permission: Permission): AgentSpec {
  const handToolset = { case: "handToolset" as const, value: { defaultPolicy: { permission } } };
  return create(AgentSpecSchema, {
    name,
    model: { id: "claude-test" },
    system: "Be brief.",
    tools: [{ kind: handToolset }],
  });
}

const isResult = ({ messages }: MessagesRequest) =>
  messages.at(-1)!.content.some(({ type }) => type === "tool_result");

/** The grader is in trouble, cannot be read, is never content with the first outcome, and at once with the second. */
export function outcomeScript(): Script {
  const answers: Turn[] = [
    overloaded(),
    turn(["hm"]),
    verdict(false, true),
    verdict(false, false),
    verdict(true, true),
  ];
  return (request) => {
    if (isGraders(request)) return answers.shift()!;
    return isResult(request)
      ? turn(["It is painted."])
      : turn(["On it.", toolUse("bash", { command: "paint" })]);
  };
}

/** An outcome that is not reached, talk about it, and one that is reached. */
export async function playOutcomeSession(rig: Rig): Promise<ScriptedSession> {
  const session = rig.server.createSession(agent("outcome", Permission.ALWAYS_ALLOW));
  define(session, "Paint a ball.", { max_iterations: 2 });
  await rested(session);
  session.say("thanks, grün 🙂");
  await rested(session, 2);
  define(session, "Paint a cube.");
  await rested(session, 3);
  return session;
}

/** Verdicts by command; of any other the judge says nothing that could be read. */
const VERDICTS: Readonly<Record<string, string>> = { ls: "allow", rm: "deny", mv: "ask" };

export const autoScript: Script = (request) => {
  if (request.model === JUDGING_MODEL) {
    const { call } = JSON.parse(String(request.messages[0]!.content[0]!.text));
    const word = VERDICTS[JSON.parse(call.input_json).command];
    return turn([word === undefined ? "hm" : JSON.stringify({ verdict: word, reason: `${word} it` })]);
  }
  if (isResult(request)) return turn(["Done."]);
  const commands = String(request.messages.at(-1)!.content.at(-1)!.text).split(" ");
  return turn(["I will.", ...commands.map((command) => toolUse("bash", { command }))]);
};

/** Calls that run, that do not, and that a client says yes or no to. */
export async function playAutoSession(rig: Rig): Promise<ScriptedSession> {
  const session = rig.talk("ls rm", agent("auto", Permission.AUTO));
  await rested(session);
  for (const [at, result] of ["allow", "deny"].entries()) {
    session.say(at === 0 ? "mv" : "what");
    await rested(session, 2 + 2 * at);
    const [{ id } = { id: "" }] = session.events.filter(({ type }) => type === "agent.tool_use").slice(-1);
    session.send({ type: "user.tool_confirmation", payload: { tool_use_id: id, result } });
    await rested(session, 3 + 2 * at);
  }
  return session;
}
