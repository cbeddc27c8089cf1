/** Outcomes as applications define them: the built programs, the official client, the model faked at its wire. */
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { sessionFaults } from "../kit/declared-shapes.ts";
import { eventually } from "../kit/eventually.ts";
import {
  type FakeMessagesApi,
  gate,
  type MessagesRequest,
  startFakeMessagesApi,
  type Turn,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { definition, isGraders, RUBRIC, verdict, wasGraders, wordsOf } from "../kit/outcome-session.ts";
import type { Platform } from "../kit/platform.ts";

let api: FakeMessagesApi;
let platform: Platform;
let client: Anthropic;
let agent: string;
let environment: string;
/** What model and grader do in the running test. */
let works: (request: MessagesRequest) => Turn | Promise<Turn>;
let judges: (request: MessagesRequest) => Turn | Promise<Turn>;

beforeAll(async () => {
  api = await startFakeMessagesApi({
    script: (request) => (isGraders(request) ? judges(request) : works(request)),
  });
  platform = await startDatabasePlatform({
    env: { harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url } },
  });
  client = new Anthropic({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0 });
  const tools = [{ type: "agent_toolset_20260401" as const }];
  agent = (await client.beta.agents.create({ name: "a", model: "claude-test", tools })).id;
  environment = (await client.beta.environments.create({ name: "e", config: { type: "cloud" } })).id;
});

afterAll(async () => {
  await platform?.stop();
  await api?.stop();
  expect(api?.refusals).toEqual([]);
});

afterEach(() => {
  works = () => turn(["did it"]);
  judges = () => verdict(true);
});

const newSession = (initial_events: object[] = []) =>
  client.beta.sessions.create({ agent, environment_id: environment, initial_events } as never);

const outcomeOf = async (sessionId: string) =>
  (await client.beta.sessions.retrieve(sessionId)).outcome_evaluations.at(-1);

const send = (sessionId: string, ...events: object[]) =>
  client.beta.sessions.events.send(sessionId, { events } as never);

/** Once it has come to rest so often. */
async function rested(sessionId: string, times = 1) {
  await eventually(
    async () =>
      (await eventsOf(sessionId)).filter(({ type }) => type === "session.status_idle").length >= times,
    { withinMs: 60_000, everyMs: 20 },
  );
  return client.beta.sessions.retrieve(sessionId);
}

async function eventsOf(sessionId: string): Promise<Record<string, unknown>[]> {
  const found: Record<string, unknown>[] = [];
  for await (const event of client.beta.sessions.events.list(sessionId)) found.push(event as never);
  return found;
}

const graders = () => api.requests.filter(wasGraders);

it("is told on the stream and in the session: pending, running, evaluating, and what came of it", async () => {
  const [working, judging] = [gate(), gate()];
  works = async ({ messages }) => {
    if (messages.at(-1)!.content.some(({ type }) => type === "tool_result")) return turn(["It is there."]);
    await working.opened;
    const command = "mkdir -p /mnt/session/outputs && printf 'blue and round' >/mnt/session/outputs/ball.txt";
    return turn([toolUse("bash", { command })]);
  };
  judges = async () => {
    await judging.opened;
    return verdict(true, true);
  };
  const session = await newSession([definition("Make a ball.", { max_iterations: 5 })]);
  expect(session.outcome_evaluations).toMatchObject([
    {
      type: "outcome_evaluation",
      description: "Make a ball.",
      iteration: 0,
      explanation: null,
      completed_at: null,
    },
  ]);
  const stream = await client.beta.sessions.events.stream(session.id);
  await eventually(async () => (await outcomeOf(session.id))?.result === "running");
  // One at a time, also in one request.
  await expect(send(session.id, definition("Another."))).rejects.toMatchObject({
    status: 400,
    message: expect.stringContaining("works towards the outcome"),
  });
  working.open();
  await eventually(async () => (await outcomeOf(session.id))?.result === "evaluating");
  judging.open();
  const seen: { type: string; id: string; result?: string }[] = [];
  for await (const event of stream) {
    seen.push(event as never);
    if (event.type === "session.status_idle") break;
  }
  const spans = seen.filter(({ type }) => type.startsWith("span.outcome"));
  expect(spans.map(({ type }) => type)).toEqual([
    "span.outcome_evaluation_start",
    "span.outcome_evaluation_end",
  ]);
  expect(seen.map(({ type }) => type).slice(-4)).toEqual([
    "span.outcome_evaluation_end",
    "session.thread_status_idle",
    "session.usage",
    "session.status_idle",
  ]);
  const events = await eventsOf(session.id);
  const defined = events.find(({ type }) => type === "user.define_outcome")!;
  expect(defined).toMatchObject({
    outcome_id: expect.stringMatching(/^outc_/),
    processed_at: expect.any(String),
    max_iterations: 5,
    rubric: { type: "text", content: RUBRIC },
  });
  const done = await client.beta.sessions.retrieve(session.id);
  expect(done.status).toBe("idle");
  expect(done.outcome_evaluations).toEqual([
    {
      type: "outcome_evaluation",
      outcome_id: defined.outcome_id,
      description: "Make a ball.",
      result: "satisfied",
      iteration: 0,
      explanation: expect.stringContaining("- met: It is blue."),
      completed_at: expect.any(String),
    },
  ]);
  expect(wordsOf(graders().at(-1)!)).toContain("ball.txt (14 bytes):\nblue and round");
  // What the grader used is part of the sums.
  const end = events.find(({ type }) => type === "span.outcome_evaluation_end")!;
  const usages = [
    ...events.filter(({ type }) => type === "span.model_request_end").map(({ model_usage }) => model_usage),
    end.usage,
  ] as { input_tokens: number; output_tokens: number }[];
  expect(done.usage.output_tokens).toBe(usages.reduce((sum, { output_tokens }) => sum + output_tokens, 0));
  const told = events.findLast(({ type }) => type === "session.usage")!.usage as { output_tokens: number };
  expect(told.output_tokens).toBe(done.usage.output_tokens);
  const { data } = await client.beta.sessions.list({ limit: 5 });
  expect(data.find(({ id }) => id === session.id)?.outcome_evaluations).toEqual(done.outcome_evaluations);
});

it("may be judged by a file, whose text stays with it; wrong ones are refused and leave nothing", async () => {
  works = () => turn(["did it"]);
  const file = await client.beta.files.upload({ file: await toFile(Buffer.from(RUBRIC), "rubric.md") });
  const bytes = await client.beta.files.upload({ file: await toFile(Buffer.from([0xff, 0xfe]), "bytes") });
  const session = await newSession();
  const wrong: [object[], number][] = [
    [[{ ...definition("d"), rubric: undefined }], 400],
    [[{ ...definition("d"), rubric: { type: "text", content: "" } }], 400],
    [[{ ...definition("d"), rubric: { type: "text", content: "x".repeat(262_145) } }], 400],
    [[{ ...definition("d"), rubric: { type: "file", file_id: bytes.id } }], 400],
    [[{ ...definition("d"), rubric: { type: "file", file_id: "file_none" } }], 404],
    [[definition("")], 400],
    [[definition("d", { max_iterations: 0 })], 400],
    [[definition("d", { max_iterations: 21 })], 400],
    [[definition("d", { max_iterations: 1.5 })], 400],
    [[definition("one"), definition("two")], 400],
  ];
  for (const [events, status] of wrong) {
    const what = JSON.stringify(events).slice(0, 200);
    await expect(send(session.id, ...events), what).rejects.toMatchObject({ status });
    await expect(newSession(events), what).rejects.toMatchObject({ status });
  }
  expect(await eventsOf(session.id)).toEqual([]);
  judges = () => verdict(false);
  await send(session.id, {
    ...definition("d", { max_iterations: 1 }),
    rubric: { type: "file", file_id: file.id },
  });
  await client.beta.files.delete(file.id);
  const first = await rested(session.id);
  expect(first.outcome_evaluations).toMatchObject([{ result: "max_iterations_reached", iteration: 0 }]);
  expect(wordsOf(graders().at(-1)!)).toContain(RUBRIC);
  expect((await eventsOf(session.id))[0]).toMatchObject({ rubric: { type: "file", file_id: file.id } });
  // The next one, once that is over.
  judges = () => verdict(true);
  await send(session.id, definition("e"));
  expect((await rested(session.id, 2)).outcome_evaluations).toMatchObject([
    { result: "max_iterations_reached" },
    { result: "satisfied" },
  ]);
});

it("pauses at the budget and goes on when it is raised; ends as interrupted when the session is archived", async () => {
  judges = () => turn(["not reached"]);
  const budget = { type: "limit", max_turns: 1 };
  const session = await client.beta.sessions.create({
    agent,
    environment_id: environment,
    budget,
    initial_events: [definition("d")],
  } as never);
  const stopped = await rested(session.id);
  expect(stopped.outcome_evaluations).toMatchObject([{ result: "running" }]);
  expect((await eventsOf(session.id)).at(-1)).toMatchObject({ stop_reason: { type: "budget_reached" } });
  const hold = gate();
  judges = async () => {
    await hold.opened;
    return verdict(true);
  };
  const asked = graders().length;
  await client.beta.sessions.update(session.id, { budget: { ...budget, max_turns: 10 } } as never);
  await eventually(() => graders().length > asked);
  await client.post(`/v1/sessions/${session.id}/archive?interrupt=true`);
  hold.open();
  const ended = await client.beta.sessions.retrieve(session.id);
  expect(ended).toMatchObject({ status: "terminated", outcome_evaluations: [{ result: "interrupted" }] });
  const end = (await eventsOf(session.id)).find(({ type }) => type === "span.outcome_evaluation_end");
  expect(end).toMatchObject({
    result: "interrupted",
    outcome_evaluation_start_id: expect.stringMatching(/^sevt_/),
  });
});

it.each(["harness.before_grading", "harness.graded"] as const)(
  "is judged once for each iteration by whoever comes next, where a harness dies at %s (E2, X3)",
  async (point) => {
    let judged = 0;
    judges = ({ messages }) => {
      judged += 1;
      return verdict(JSON.stringify(messages).includes("Not good yet."));
    };
    expect(await platform.program("harness").end("SIGTERM")).toBe(0);
    const doomed = await platform.start("harness", { TENDON_FAILPOINTS: `${point}=kill@2` });
    const session = await newSession([definition("d")]);
    expect(await doomed.ended).toBe("SIGKILL");
    await platform.start("harness");
    const done = await rested(session.id);
    expect(done.outcome_evaluations).toMatchObject([{ result: "satisfied", iteration: 1 }]);
    const events = await eventsOf(session.id);
    const of = (type: string) => events.filter((event) => event.type === `span.outcome_evaluation_${type}`);
    expect(of("start").map(({ iteration }) => iteration)).toEqual([0, 1]);
    expect(of("end").map(({ iteration, result }) => [iteration, result])).toEqual([
      [0, "needs_revision"],
      [1, "satisfied"],
    ]);
    // What was answered to the dead one nobody has.
    expect(judged).toBe(point === "harness.graded" ? 3 : 2);
  },
);

it("says all that was said here as the official client declares it", async () => {
  expect(await sessionFaults(client)).toEqual([]);
});
