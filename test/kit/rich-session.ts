/**
 * One session in which everything happens that a log can hold: parallel calls of three kinds, confirmations, a custom tool,
 * a model in trouble, calls that cannot run, a paused and a cut answer, a denied call, a message while clients are waited
 * for, an interrupt and a refusal. For tests that go on from any part of it, and for logs that are replayed.
 */
import { create } from "@bufbuild/protobuf";
import { type AgentSpec, AgentSpecSchema, Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { eventually } from "./eventually.ts";
import {
  type Gate,
  type MessagesRequest,
  overloaded,
  redactedThinking,
  refusal,
  type Turn,
  text,
  thinking,
  toolUse,
  turn,
} from "./fake-messages-api.ts";
import { type Rig, rested } from "./harness-rig.ts";
import type { ScriptedTool } from "./scripted-harness-server.ts";
import type { ScriptedSession } from "./scripted-session.ts";

export const RICH_AGENT: AgentSpec = create(AgentSpecSchema, {
  name: "rich",
  model: { id: "claude-test" },
  system: "Be brief.",
  tools: [
    {
      kind: {
        case: "handToolset",
        value: { tools: { read: { permission: Permission.ALWAYS_ASK } } },
      },
    },
    {
      kind: {
        case: "custom",
        value: { name: "ask_user", description: "Asks.", inputSchema: `{"type":"object"}` },
      },
    },
  ],
});

export const RICH_TOOLS: Record<string, ScriptedTool> = {
  bash: ({ command }) => ({ text: `ran ${command}` }),
  read: ({ command }) => ({ text: `read ${command}`, isError: command === "nothing" }),
};

/** What the model says depends on its request alone; with `live`, it is also in trouble once, and once it does not end. */
export function richScript(live?: { readonly hold: Gate }): (request: MessagesRequest) => Turn {
  let troubles = live === undefined ? 0 : 1;
  return ({ messages }) => {
    const spoken = messages.filter(({ role }) => role !== "system");
    const last = spoken.at(-1)!;
    if (last.role === "assistant") return turn([" part two"]);
    const words = last.content.flatMap((block) => (block.type === "text" ? [String(block.text)] : [])).at(-1);
    if (words === "two" && troubles > 0) {
      troubles -= 1;
      return overloaded();
    }
    if (words === "hold" && live !== undefined)
      return turn([text("never ", "whole")], { before: { end: live.hold.opened } });
    if (words !== undefined) return turnFor(words);
    const calls = JSON.stringify(spoken.at(-2)?.content ?? "");
    if (calls.includes("ask_user")) return turn(["cut he"], { stopReason: "max_tokens" });
    if (calls.includes("nope")) return turn(["part one"], { stopReason: "pause_turn" });
    return turn(["as you like"]);
  };
}

function turnFor(words: string): Turn {
  switch (words) {
    case "one":
      return turn([
        thinking("Three ", "things."),
        redactedThinking("secret"),
        text("Let me ", "see: grün 🙂."),
        toolUse("bash", { command: "a" }, { pieces: ['{"command" : ', '"a"}'] }),
        toolUse("read", { command: "b" }),
        toolUse("ask_user", { question: "which?" }),
      ]);
    case "two":
      return turn([
        toolUse("bash", '{"command": "a"'),
        toolUse("nope", {}),
        toolUse("bash", { command: "c" }),
      ]);
    case "three":
      return turn([toolUse("read", { command: "nothing" })]);
    case "bad":
      return refusal(["I will not"], "cyber");
    default:
      return turn([`heard ${words}`]);
  }
}

const said = (words: string) => ({
  type: "user.message",
  payload: { content: [{ type: "text", text: words }] },
});

/** Answers all that waits for a client. */
export function answerAll(session: ScriptedSession, result: "allow" | "deny" = "allow"): void {
  const answered = new Set(
    session.events.map(({ payload }) => {
      const { tool_use_id, custom_tool_use_id } = JSON.parse(payload || "{}");
      return tool_use_id ?? custom_tool_use_id;
    }),
  );
  for (const { id, type, payload } of [...session.events]) {
    if (answered.has(id)) continue;
    if (type === "agent.custom_tool_use") {
      const content = [{ type: "text", text: "that one" }];
      session.send({ type: "user.custom_tool_result", payload: { custom_tool_use_id: id, content } });
    }
    if (type !== "agent.tool_use" || JSON.parse(payload).evaluated_permission !== "ask") continue;
    const why = result === "deny" ? { deny_message: "not that" } : {};
    session.send({ type: "user.tool_confirmation", payload: { tool_use_id: id, result, ...why } });
  }
}

/** Plays it from the first word to the last; the rig's model follows `richScript({ hold })`. */
export async function playRichSession(rig: Rig, hold: Gate): Promise<ScriptedSession> {
  const session = rig.talk("one", RICH_AGENT);
  let idles = 0;
  const idle = () => {
    idles += 1;
    return rested(session, idles, 60_000);
  };
  await idle();
  const [custom] = session.events.filter(({ type }) => type === "agent.custom_tool_use");
  const content = [{ type: "text", text: "the first" }];
  session.send({ type: "user.custom_tool_result", payload: { custom_tool_use_id: custom!.id, content } });
  await idle();
  answerAll(session);
  await idle();
  session.say("two");
  await idle();
  session.say("three");
  await idle();
  session.send(said("four"), {
    type: "system.message",
    payload: { content: [{ type: "text", text: "be kind" }] },
  });
  answerAll(session, "deny");
  await idle();
  const asked = rig.api.requests.length;
  session.say("hold");
  await eventually(() => rig.api.requests.length > asked);
  session.send({ type: "user.interrupt", payload: {} }, said("after"));
  idles += 1;
  await idle();
  hold.open();
  session.say("bad");
  await idle();
  session.say("good");
  await idle();
  return session;
}
