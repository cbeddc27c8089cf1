/**
 * Named points at which tests let a program fail: `failpoint("agent.journalled")` in the product, and
 * `TENDON_FAILPOINTS=agent.journalled=kill` in the environment of the program that a test starts.
 *
 *   NAME=kill     the process is gone at once, as by kill -9
 *   NAME=pause    the process stands still until somebody sends SIGCONT, as a machine that hangs
 *   NAME=error    the point throws
 *   NAME=kill@3   the third time that it is passed; without a number the first. Every entry acts once.
 *
 * Unless the setting is given a point is a call that compares one variable: nothing is looked up, awaited or allocated.
 * That is why the bundles that people install have them too: what is tested is, byte for byte, what is shipped, and who
 * can set a program's environment can end it anyway. A program with failpoints says so in a warning when it starts.
 */
import type { Logger } from "./log.ts";

/** Every point, in the order in which a call passes them. */
export const FAILPOINTS = [
  /** The harness has read a call in the log and is about to send it. */
  "harness.before_dispatch",
  /** The server has answered that the call is bound. */
  "harness.dispatched",
  /** The first output has come. */
  "harness.output",
  /** The result has come; the brain has not gone on. */
  "harness.result_received",
  /** A call that the brain runs itself is in the log and about to be run. */
  "harness.before_brain_call",
  /** It has run; its result is not in the log. */
  "harness.brain_call_done",
  /** A call of an MCP server is in the log; the proxy has not been asked. */
  "harness.before_mcp_call",
  /** An evaluation's start is in the log; the grader has not been asked. */
  "harness.before_grading",
  /** The grader has answered; its verdict is not in the log. */
  "harness.graded",
  /** Some events of a brain are about to be sent to the log. */
  "harness.before_append",
  /** They are in the log, and the brain has not seen it. */
  "harness.appended",
  /** The server has found the hand of a call; nothing is recorded. */
  "server.before_bind",
  /** The call is bound; nothing is sent. */
  "server.bound",
  /** A result has come from an agent; it is not stored. */
  "server.result_received",
  /** It is stored and in the log; nobody has been told. */
  "server.result_stored",
  /** A call of an MCP server is recorded; its proxy does not know it yet. */
  "server.mcp_call_begun",
  /** Its result is stored and in the log; nobody has been told. */
  "server.mcp_result_stored",
  /** A call of an MCP server is recorded; it is not sent. */
  "proxy.mcp_call_begun",
  /** The MCP server has answered; the answer is not stored. */
  "proxy.mcp_answered",
  /** An item of work is given out, which is stored; its worker has not heard of it. */
  "server.work_claimed",
  /** A worker has accepted an item, which is stored; it has not heard so. */
  "server.work_accepted",
  /** A hand has its place; its agent has not been asked. */
  "server.hand_placed",
  /** Its agent has made it; that is not stored. */
  "server.hand_made",
  /** A tamper-evident session has come to rest, which is in its log; nothing is signed. */
  "server.before_checkpoint",
  /** What a thread's log says stands in the other logs of its tree; the note that it has to is still there. */
  "server.tree_news_told",
  /** A deployment's time has its run, in a transaction that has not made the session. */
  "server.run_claimed",
  /** Run and session are there; nobody has been told. */
  "server.run_recorded",
  /** A proxy has traded a code for tokens; they are not sealed, and nobody has been told. */
  "proxy.code_traded",
  /** A server may send what waits of a session to an endpoint; nothing is sent. */
  "server.webhook_claimed",
  /** A proxy has said how a webhook ended; that is not written down. */
  "server.webhook_answered",
  /** A webhook is signed; it is not sent. */
  "proxy.webhook_signed",
  /** Its receiver has answered; the server has not been told. */
  "proxy.webhook_answered",
  /** A proxy may refresh a token; it has not asked for the new one. */
  "proxy.refresh_claimed",
  /** The new token has come; it is not stored. */
  "proxy.token_refreshed",
  /** It is stored; nobody uses it yet. */
  "proxy.token_stored",
  /** A call has come that the agent did not know. */
  "agent.start_received",
  /** It is on disk; nothing has run. */
  "agent.journalled",
  /** Its tool has given output. */
  "agent.tool_running",
  /** Its tool has ended; nothing is written down. */
  "agent.tool_ended",
  /** The result is in the journal; nothing is sent. */
  "agent.result_journalled",
  /** The result is sent; that it is stored has not come back. */
  "agent.result_sent",
  /** The server has it; the journal still has it too. */
  "agent.result_acked",
  /** A hand is noted on disk; nothing of it is made. */
  "agent.hand_noted",
  /** It is made; the note does not say so. */
  "agent.hand_made",
] as const;

export type FailpointName = (typeof FAILPOINTS)[number];

const ACTIONS = ["kill", "pause", "error"] as const;

interface FailpointPlan {
  readonly name: FailpointName;
  readonly action: (typeof ACTIONS)[number];
  /** At which passing it acts, from 1. */
  readonly at: number;
}

let armed: ((name: FailpointName) => void) | undefined;

/** Does nothing, unless the program was started with a failpoint of this name. */
export function failpoint(name: FailpointName): void {
  armed?.(name);
}

/** For a program's start, with the setting's text; `undefined` leaves every point without effect. */
export function armFailpoints(setting: string | undefined, log: Pick<Logger, "warn">): void {
  if (setting === undefined) {
    armed = undefined;
    return;
  }
  const plans = parsePlans(setting);
  log.warn(
    { failpoints: setting },
    "this program fails on purpose: TENDON_FAILPOINTS is set, which is for tests only",
  );
  const passed = new Map<FailpointName, number>();
  armed = (name) => {
    const count = (passed.get(name) ?? 0) + 1;
    passed.set(name, count);
    for (const plan of plans) if (plan.name === name && plan.at === count) act(plan);
  };
}

function act({ name, action }: FailpointPlan): void {
  if (action === "error") throw new Error(`failpoint ${name}`);
  // The kernel acts before the call returns.
  process.kill(process.pid, action === "kill" ? "SIGKILL" : "SIGSTOP");
}

/** Parser of the setting, which gives the text back once it is known to be right. */
export function failpoints(): (value: string) => string {
  return (value) => {
    parsePlans(value);
    return value;
  };
}

function parsePlans(text: string): FailpointPlan[] {
  return text.split(",").map((entry) => parsePlan(entry.trim()));
}

function parsePlan(entry: string): FailpointPlan {
  const match = /^([a-z_.]+)=([a-z]+)(?:@([1-9][0-9]{0,5}))?$/.exec(entry);
  if (match === null)
    throw new Error(`must be NAME=${ACTIONS.join("|")}, or the same with @N behind it, and commas between`);
  const name = FAILPOINTS.find((known) => known === match[1]);
  const action = ACTIONS.find((known) => known === match[2]);
  if (name === undefined) throw new Error(`must name failpoints that there are: ${FAILPOINTS.join(", ")}`);
  if (action === undefined) throw new Error(`must be one of ${ACTIONS.join(", ")} behind the name`);
  return { name, action, at: Number(match[3] ?? 1) };
}
