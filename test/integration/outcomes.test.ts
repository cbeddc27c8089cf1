/** What a session works towards, judged beside its loop: a real harness, a log in memory, the model faked at its wire. */
import { create } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { plan, requestParts } from "../../harness/loops/claude/plan.ts";
import { createTextModel } from "../../harness/loops/claude/text-requests.ts";
import { graderQuestion } from "../../harness/outcome/grader-request.ts";
import { applyEvent } from "../../harness/session-fold.ts";
import { newSessionState } from "../../harness/session-state.ts";
import { historyEvent } from "../../harness/session-view.ts";
import { toolCatalogue } from "../../harness/tool-catalogue.ts";
import { AgentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { type Event, EventSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { SlotToolsSchema } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import {
  gate,
  invalidRequest,
  type MessagesRequest,
  overloaded,
  refusal,
  type Script,
  type Turn,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { type Rig, rested, spoken, startRig, stopReasons } from "../kit/harness-rig.ts";
import {
  define,
  ends,
  isGraders,
  notApplicable,
  RUBRIC,
  verdict,
  wasGraders,
  wordsOf,
} from "../kit/outcome-session.ts";
import type { ScriptedSession } from "../kit/scripted-session.ts";

type Answer = Turn | ((request: MessagesRequest) => Turn | Promise<Turn>);

let rig: Rig;
/** What model and grader do in the running test, and which requests are its own. */
let script: Script;
let from = 0;

beforeAll(async () => {
  const tools = { bash: () => ({ text: "painted blue" }) };
  const model = { script: ((request, n) => script(request, n)) as Script };
  rig = await startRig({ model, server: { tools } });
});
afterAll(() => rig?.stop());

/** The agent says "did it" each time, or what `work` says; the grader answers in turn, its last answer again and again. */
function plays(verdicts: readonly Answer[], work?: Script): void {
  let judged = 0;
  let worked = 0;
  from = rig.api.requests.length;
  script = (request) => {
    if (!isGraders(request)) return work?.(request, ++worked) ?? turn(["did it"]);
    const answer = verdicts[Math.min(judged++, verdicts.length - 1)]!;
    return typeof answer === "function" ? answer(request) : answer;
  };
}

const requests = () => rig.api.requests.slice(from);
const types = (session: ScriptedSession) =>
  session.types().filter((type) => !/^(span\.model.*|session\.usage|.*_ongoing)$/.test(type));
const graderRequests = () => requests().filter(wasGraders);
const results = (session: ScriptedSession) => ends(session).map(({ result }) => result);

describe("an outcome", () => {
  it("starts work by itself, is judged by its rubric over what was said and done, and ends idle when it is satisfied", async () => {
    plays([verdict(true, true)], (_, n) =>
      n === 1 ? turn(["On it.", toolUse("bash", { command: "paint" })]) : turn(["It is painted."]),
    );
    const session = rig.server.createSession();
    const id = define(session, "Paint a ball.");
    await rested(session);
    expect(types(session)).toEqual([
      "user.define_outcome",
      "session.status_running",
      "brain.inputs_consumed",
      "agent.message",
      "agent.tool_use",
      "agent.tool_result",
      "agent.message",
      "span.outcome_evaluation_start",
      "span.outcome_evaluation_end",
      "session.status_idle",
    ]);
    const [end] = ends(session);
    const started = session.events.find(({ type }) => type === "span.outcome_evaluation_start")!;
    expect(end).toMatchObject({
      outcome_id: id.replace("sevt_", "outc_"),
      outcome_evaluation_start_id: started.id,
      iteration: 0,
      result: "satisfied",
      explanation: expect.stringContaining("- met: It is round."),
    });
    expect(end!.usage.output_tokens).toBeGreaterThan(0);
    const [first] = requests();
    expect(wordsOf(first!)).toContain("Paint a ball.");
    expect(wordsOf(first!)).toContain(RUBRIC);
    const [asked] = graderRequests();
    expect(asked!.json).not.toHaveProperty("tools");
    for (const shown of [
      "Paint a ball.",
      RUBRIC,
      'agent calls bash: {"command":"paint"}',
      "result: painted blue",
    ])
      expect(wordsOf(asked!)).toContain(shown);
    // Nothing of the grader's talk is in the agent's, and the sums hold both.
    const usage = session.payloads("session.usage").at(-1)!.usage as {
      model_requests: number;
      output_tokens: number;
    };
    const spans = session.payloads("span.model_request_end") as {
      model_usage: { output_tokens: number };
    }[];
    const sum = spans.reduce((total, request) => total + request.model_usage.output_tokens, 0);
    expect(usage).toMatchObject({ model_requests: 3, output_tokens: sum + end!.usage.output_tokens });
    session.say("thanks");
    await rested(session, 2);
    expect(wordsOf(requests().at(-1)!)).not.toContain("I looked.");
    expect(results(session)).toEqual(["satisfied"]);
  });

  it("goes back to the agent with what each criterion lacks, as often as it may, and then has one last word", async () => {
    plays([verdict(false, true)]);
    const session = rig.server.createSession();
    define(session, "Paint a ball.", { max_iterations: 2 });
    await rested(session);
    expect(ends(session).map(({ iteration, result }) => [iteration, result])).toEqual([
      [0, "needs_revision"],
      [1, "max_iterations_reached"],
    ]);
    const agents = requests().filter((request) => !wasGraders(request));
    expect(agents).toHaveLength(3);
    expect(wordsOf(agents[1]!)).toContain("- not met: It is blue.\n  Not yet: mend It is blue.");
    expect(wordsOf(agents[2]!)).toContain("judged for the last time");
    // Each request begins with the one before it.
    const plain = agents.map(({ body }) =>
      body.toString().replaceAll(`,"cache_control":{"type":"ephemeral"}`, ""),
    );
    for (const [at, later] of plain.slice(1).entries())
      expect(later.startsWith(plain[at]!.replace(/\]\}\]\}$/, ""))).toBe(true);
    expect(spoken(session)).toEqual(["did it", "did it", "did it"]);
    expect(stopReasons(session)).toEqual(["end_turn"]);
    // Another one may follow, with all that was said before.
    define(session, "Paint a cube.");
    await rested(session, 2);
    expect(results(session).slice(2)).toEqual(["needs_revision", "needs_revision", "max_iterations_reached"]);
    expect(wordsOf(graderRequests().at(-1)!)).not.toContain("Paint a ball.");
    expect(wordsOf(requests().at(-1)!)).toContain("Paint a ball.");
  });

  it.each<[string, Answer, string, string]>([
    ["fails when the rubric does not fit", notApplicable(), "end_turn", "about something else"],
    [
      "fails when nobody can read the grader, after three answers",
      turn(["Looks fine."]),
      "retries_exhausted",
      "could not be read",
    ],
    [
      "fails when the grader's provider refuses",
      invalidRequest("no"),
      "retries_exhausted",
      "calls the request invalid",
    ],
  ])("%s", async (_, answer, reason, explanation) => {
    plays([answer]);
    const session = rig.server.createSession();
    define(session, "Paint a ball.");
    await rested(session);
    expect(ends(session)).toMatchObject([
      { result: "failed", explanation: expect.stringContaining(explanation) },
    ]);
    expect(graderRequests().length).toBe(reason === "end_turn" ? 1 : 3);
    expect(stopReasons(session)).toEqual([reason]);
    const errors = session.payloads("session.error").map(({ error }) => (error as { reason: string }).reason);
    if (reason === "end_turn") expect(errors).toEqual([]);
    else expect(errors.at(-1)).toMatch(/^(GRADER_UNREADABLE|MODEL_REQUEST_FAILED)$/);
    session.say("go on");
    await rested(session, 2);
    expect(spoken(session).at(-1)).toBe("did it");
  });

  it("survives a grader in trouble: it is asked again, with less where it was too much, and one answer counts", async () => {
    const tooLong = invalidRequest("prompt is too long: 219898 tokens > 200000 maximum");
    const answers = [overloaded(), tooLong, turn(["<verdict>{}</verdict>"]), verdict(true)];
    plays(answers);
    const session = rig.server.createSession();
    define(session, "Paint a ball.");
    await rested(session);
    expect(results(session)).toEqual(["satisfied"]);
    expect(graderRequests()).toHaveLength(4);
    expect(wordsOf(graderRequests()[3]!)).toContain("could not be read");
    expect(session.types()).toContain("session.status_rescheduled");
    expect(session.payloads("span.outcome_evaluation_ongoing").length).toBeGreaterThanOrEqual(3);
    // What the unreadable one has used counts.
    const [end] = ends(session);
    expect(end!.usage.output_tokens).toBeGreaterThan(graderRequests()[3]!.body.length > 0 ? 1 : 0);
  });

  it("says while it is judged that it goes on, and takes in what a user says meanwhile with what is fed back", async () => {
    const hold = gate();
    const held: Answer = async () => {
      await hold.opened;
      return verdict(false, true);
    };
    plays([held, verdict(true, true)]);
    const quick = await startRig({
      model: { script: (request, n) => script(request, n) },
      settings: { gradingHeartbeatMs: 5 },
    });
    const session = quick.server.createSession();
    define(session, "Paint a ball.");
    await eventually(() => session.payloads("span.outcome_evaluation_ongoing").length >= 2);
    session.say("and make it matt");
    expect(session.types().at(-1)).not.toBe("session.status_idle");
    hold.open();
    await rested(session);
    const asked = quick.api.requests;
    const last = asked.filter((request) => !wasGraders(request)).at(-1)!;
    expect(wordsOf(last)).toMatch(
      /and make it matt[\s\S]*not met: It is blue|not met: It is blue[\s\S]*and make it matt/,
    );
    expect(wordsOf(asked.filter(wasGraders)[1]!)).toContain("user: and make it matt");
    expect(results(session)).toEqual(["needs_revision", "satisfied"]);
    expect(stopReasons(session)).toEqual(["end_turn"]);
    await quick.stop();
  });

  it("ends as interrupted wherever an interrupt comes: before it began, during work, while it is judged, before it goes on", async () => {
    const hold = gate();
    const working: Script = async ({ messages }) => {
      if (JSON.stringify(messages.at(-1)).includes("slowly")) await hold.opened;
      return turn(["did it"]);
    };
    const slow: Answer = async () => {
      await hold.opened;
      return verdict(true);
    };
    plays([slow], working);
    const interrupt = { type: "user.interrupt", payload: {} };
    const during = rig.server.createSession();
    define(during, "Paint slowly.");
    await eventually(() => requests().length === 1);
    during.send(interrupt);
    await rested(during);
    expect(ends(during)).toMatchObject([
      { result: "interrupted", outcome_evaluation_start_id: "", iteration: 0 },
    ]);
    const judged = rig.server.createSession();
    define(judged, "Paint a ball.");
    await eventually(() => graderRequests().length === 1);
    judged.send(interrupt);
    await rested(judged);
    const start_ = judged.events.find(({ type }) => type === "span.outcome_evaluation_start")!;
    expect(ends(judged)).toMatchObject([{ result: "interrupted", outcome_evaluation_start_id: start_.id }]);
    const pending = rig.talk("talk slowly");
    await eventually(() => requests().length === 4);
    define(pending, "Paint a ball.");
    pending.send(interrupt);
    await rested(pending);
    expect(results(pending)).toEqual(["interrupted"]);
    hold.open();
    for (const session of [during, judged, pending]) {
      expect(stopReasons(session)).toEqual(["end_turn"]);
      expect(session.payloads("session.status_idle")[0]).toHaveProperty("interrupted");
      session.say("hello");
      await rested(session, 2);
      expect(results(session)).toHaveLength(1);
    }
  });

  it("fails with the model's refusal, and is kept when the model cannot be reached: the next message goes on with it", async () => {
    let broken = true;
    const working: Script = ({ messages }) => {
      if (JSON.stringify(messages).includes("forbidden")) return refusal(["No."], "cyber");
      return broken ? invalidRequest("no") : turn(["did it"]);
    };
    plays([verdict(true)], working);
    const refused = rig.server.createSession();
    define(refused, "Do the forbidden.");
    await rested(refused);
    expect(results(refused)).toEqual(["failed"]);
    expect(stopReasons(refused)).toEqual(["refusal"]);
    const kept = rig.server.createSession();
    define(kept, "Paint a ball.");
    await rested(kept);
    expect(results(kept)).toEqual([]);
    expect(stopReasons(kept)).toEqual(["retries_exhausted"]);
    broken = false;
    kept.say("try again");
    await rested(kept, 2);
    expect(results(kept)).toEqual(["satisfied"]);
  });

  it("works with a loop that needs no model", async () => {
    plays([verdict(false), verdict(true)]);
    const steps = [{ say: "first" }, { say: "second" }];
    const session = rig.server.createSession({ loop: "scripted", loopSettings: JSON.stringify({ steps }) });
    define(session, "Say it twice.");
    await rested(session);
    expect(spoken(session)).toEqual(["first", "second"]);
    expect(results(session)).toEqual(["needs_revision", "satisfied"]);
  });
});

/** A session that is judged twice, with trouble on the way. */
async function recorded(): Promise<ScriptedSession> {
  const answers = [verdict(false, true), overloaded(), turn(["hm"]), verdict(true, true)];
  plays(answers, ({ messages }) =>
    messages.at(-1)!.content.some(({ type }) => type === "tool_result")
      ? turn(["did it"])
      : turn([toolUse("bash", { command: "paint" })]),
  );
  const session = rig.server.createSession();
  define(session, "Paint a ball.");
  await rested(session);
  expect(results(session)).toEqual(["needs_revision", "satisfied"]);
  return session;
}

const copyOf = (session: ScriptedSession) => session.events.map((event) => create(EventSchema, event));

describe("every prefix of a log with an outcome", () => {
  it("is gone on from, whoever died there: one verdict for each iteration, and the loop comes to its end", async () => {
    const log = copyOf(await recorded());
    // What is judged decides, so that it does not matter who asks how often.
    const judge: Answer = (request) => {
      const said = JSON.stringify(request.messages);
      return said.includes("Not good yet.") ? verdict(true, true) : verdict(false, true);
    };
    plays([judge], ({ messages }) =>
      messages.at(-1)!.content.some(({ type }) => type === "tool_result")
        ? turn(["did it"])
        : turn([toolUse("bash", { command: "paint" })]),
    );
    const sessions = log.map((_, index) => rig.resume(log.slice(0, index + 1)));
    for (const [index, session] of sessions.entries()) {
      const label = `after ${index + 1} events, the last a ${log[index]!.type}`;
      await rested(session).catch(() => {
        throw new Error(`${label}: ${session.types().slice(index + 1)}`);
      });
      const judged = ends(session);
      expect(judged.at(-1)!.result, label).toBe("satisfied");
      expect(
        judged.map(({ iteration }) => iteration),
        label,
      ).toEqual(judged.map((_, at) => at));
      const starts = session.events.filter(({ type }) => type === "span.outcome_evaluation_start");
      expect(
        starts.map(({ id }) => id),
        label,
      ).toEqual(judged.map((end) => end.outcome_evaluation_start_id));
      expect(stopReasons(session).at(-1), label).toBe("end_turn");
      const uses = session.events.filter(({ type }) => type === "agent.tool_use").map(({ id }) => id);
      const answered = session.payloads("agent.tool_result").map(({ tool_use_id }) => tool_use_id);
      expect(answered.toSorted(), label).toEqual(uses.toSorted());
    }
  });

  it("plans the bytes of the request that follows, the agent's and the grader's (R6)", async () => {
    const session = await recorded();
    const log = copyOf(session);
    const agent = create(AgentSchema, { spec: session.spec });
    const slot = create(SlotToolsSchema, {
      tools: [
        {
          name: "bash",
          description: "Runs bash.",
          inputSchema: `{"type":"object","properties":{"command":{"type":"string"}}}`,
        },
      ],
    });
    const tools = toolCatalogue(session.spec, [slot]);
    const bodies: string[] = [];
    const collect = {
      stream(body: string): never {
        bodies.push(body);
        throw new Error("nothing is asked here");
      },
    };
    const grader = createTextModel(collect, "claude-test");
    const state = newSessionState();
    const history: Event[] = [];
    for (const event of log) {
      applyEvent(state, event);
      const seen = historyEvent(event);
      if (seen !== undefined) history.push(seen);
      if (event.type === "span.model_request_start")
        bodies.push(plan(requestParts({ agent, tools, history, defaultModel: "claude-test" })).body);
      const { outcome } = state;
      const isAsked =
        event.type === "span.outcome_evaluation_start" ||
        (event.type === "span.outcome_evaluation_ongoing" && event.internal !== "");
      if (!isAsked) continue;
      const question = graderQuestion(outcome!, outcome!.evaluation!, history);
      const { model } = outcome!.evaluation!;
      const asked = grader.ask(
        { ...question, model, maxTokens: 16_000, maxSilenceMs: 1_000 },
        new AbortController().signal,
      );
      await expect(asked).rejects.toThrow("nothing is asked here");
    }
    expect(bodies).toEqual(requests().map(({ body }) => body.toString()));
  });
});
