/** Deployments by the official client and by the command, against a server whose clock the test sets. */
import Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { DeploymentService } from "../../proto/gen/tendon/v1/deployment_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { SetClock } from "../kit/set-clock.ts";
import { Installation } from "../kit/start-process.ts";

const clock = new SetClock("2026-10-23T06:30:00Z");
const installation = new Installation();
let database: TestDatabase;
let server: TestServer;
let client: Anthropic;
let agent: string;
let environment_id: string;

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url, clock });
  client = new Anthropic({ baseURL: server.url, apiKey: server.adminKey, maxRetries: 0 });
  agent = (await client.beta.agents.create({ name: "reporter", model: "claude-test" })).id;
  environment_id = (await client.beta.environments.create({ name: "here", config: { type: "cloud" } })).id;
});
afterAll(async () => {
  await installation.dispose();
  await server?.stop();
  await database?.drop();
});

const say = (text: string) => ({ type: "user.message" as const, content: [{ type: "text" as const, text }] });
const weekdays = { type: "cron" as const, expression: "0 9 * * 1-5", timezone: "Europe/Berlin" };

type Params = Anthropic.Beta.DeploymentCreateParams;

const newDeployment = (change: Partial<Params> = {}) =>
  client.beta.deployments.create({
    name: "Daily report",
    agent,
    environment_id,
    initial_events: [say("Write the report.")],
    ...change,
  });

async function all<T>(pages: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  for await (const item of pages) items.push(item);
  return items;
}

describe("a deployment", () => {
  it("is made of what its sessions are made of, and shows it", async () => {
    const store = await client.beta.memoryStores.create({ name: "notes" });
    const vault = await client.beta.vaults.create({ display_name: "v" });
    const rubric = { type: "text" as const, content: "It is short." };
    const outcome = { type: "user.define_outcome" as const, description: "a report", rubric };
    const context = {
      type: "system.message" as const,
      content: [{ type: "text" as const, text: "Be brief." }],
    };
    const made = await newDeployment({
      agent: { type: "agent", id: agent, version: 1 },
      description: "every working day",
      initial_events: [outcome, say("Write it."), context],
      resources: [{ type: "memory_store", memory_store_id: store.id, access: "read_only" }],
      vault_ids: [vault.id],
      budget: { type: "limit", max_list_cost: { amount: "250", currency: "USD" } },
      metadata: { team: "core" },
      schedule: weekdays,
    });
    expect(made).toMatchObject({
      type: "deployment",
      id: expect.stringMatching(/^depl_/),
      name: "Daily report",
      description: "every working day",
      agent: { type: "agent", id: agent, version: 1 },
      environment_id,
      initial_events: [outcome, say("Write it."), context],
      resources: [
        { type: "memory_store", memory_store_id: store.id, access: "read_only", instructions: null },
      ],
      vault_ids: [vault.id],
      budget: { type: "limit", max_list_cost: { amount: "250", currency: "USD" } },
      metadata: { team: "core" },
      status: "active",
      paused_reason: null,
      archived_at: null,
    });
    // Summer time ends between the second and the third.
    expect(made.schedule).toEqual({
      ...weekdays,
      last_run_at: null,
      upcoming_runs_at: [
        "2026-10-23T07",
        "2026-10-26T08",
        "2026-10-27T08",
        "2026-10-28T08",
        "2026-10-29T08",
      ].map((hour) => `${hour}:00:00.000Z`),
    });
    expect(await client.beta.deployments.retrieve(made.id)).toEqual(made);
  });

  it("is changed field by field; what is not said stays", async () => {
    const made = await newDeployment({
      description: "old",
      metadata: { a: "1", b: "2" },
      schedule: weekdays,
    });
    await client.beta.agents.update(agent, { description: "newer" });
    const version = (await client.beta.agents.retrieve(agent)).version;
    expect(version).toBeGreaterThan(made.agent.version);
    const same = await client.beta.deployments.update(made.id, {});
    expect(same).toEqual(made);
    const changed = await client.beta.deployments.update(made.id, {
      agent,
      name: "Report",
      description: null,
      initial_events: [say("One."), say("Two.")],
      metadata: { b: null, c: "3" },
      schedule: { type: "cron", expression: "*/15 * * * *", timezone: "UTC" },
      budget: { type: "limit", max_list_cost: { amount: "1", currency: "USD" } },
    });
    expect(changed).toMatchObject({
      name: "Report",
      description: null,
      agent: { id: agent, version },
      environment_id,
      initial_events: [say("One."), say("Two.")],
      metadata: { a: "1", c: "3" },
      budget: { max_list_cost: { amount: "1" } },
    });
    expect(changed.schedule?.upcoming_runs_at?.[0]).toBe("2026-10-23T06:45:00.000Z");
    const cleared = await client.beta.deployments.update(made.id, { schedule: null, budget: null });
    expect(cleared).toMatchObject({
      name: "Report",
      schedule: null,
      budget: null,
      metadata: { a: "1", c: "3" },
    });
  });

  it("is run by hand, also when it is paused, and its sessions name it", async () => {
    const made = await newDeployment({ schedule: weekdays });
    const paused = await client.beta.deployments.pause(made.id);
    expect(paused).toMatchObject({ status: "paused", paused_reason: { type: "manual" } });
    expect(paused.schedule?.upcoming_runs_at).toHaveLength(5);
    const run = await client.beta.deployments.run(made.id);
    expect(run).toMatchObject({
      type: "deployment_run",
      id: expect.stringMatching(/^drun_/),
      deployment_id: made.id,
      agent: made.agent,
      trigger_context: { type: "manual" },
      error: null,
    });
    const session = await client.beta.sessions.retrieve(run.session_id!);
    expect(session).toMatchObject({ deployment_id: made.id, title: "Daily report", environment_id });
    const events = await all(client.beta.sessions.events.list(session.id));
    expect(events).toMatchObject([say("Write the report.")]);
    expect(await all(client.beta.sessions.list({ deployment_id: made.id }))).toMatchObject([
      { id: session.id },
    ]);
    expect(await client.beta.deploymentRuns.retrieve(run.id)).toEqual(run);
    const after = await client.beta.deployments.unpause(made.id);
    expect(after).toMatchObject({ status: "active", paused_reason: null, schedule: { last_run_at: null } });
  });

  it("is run once for one idempotency key", async () => {
    const { id } = await newDeployment();
    const once = { headers: { "Idempotency-Key": `key-${id}` } };
    const first = await client.beta.deployments.run(id, {}, once);
    expect(await client.beta.deployments.run(id, {}, once)).toEqual(first);
    expect((await client.beta.deployments.run(id)).id).not.toBe(first.id);
    expect(await all(client.beta.sessions.list({ deployment_id: id }))).toHaveLength(2);
  });

  it("is run by its schedule, a little after the time", async () => {
    const { id } = await newDeployment({ schedule: weekdays });
    clock.atMs = Date.parse("2026-10-23T07:09:01Z");
    const [run] = await eventually(async () => {
      const runs = await all(client.beta.deploymentRuns.list({ deployment_id: id }));
      return runs.length > 0 ? runs : undefined;
    });
    expect(run).toMatchObject({
      trigger_context: { type: "schedule", scheduled_at: "2026-10-23T07:00:00.000Z" },
      error: null,
    });
    expect((await client.beta.sessions.retrieve(run!.session_id!)).deployment_id).toBe(id);
    const { schedule } = await client.beta.deployments.retrieve(id);
    expect(schedule?.last_run_at).not.toBeNull();
    expect(schedule?.upcoming_runs_at?.[0]).toBe("2026-10-26T08:00:00.000Z");
  });

  it("answers a run that fails with its error, and only a scheduled one pauses it", async () => {
    const vault = await client.beta.vaults.create({ display_name: "going" });
    const { id } = await newDeployment({
      vault_ids: [vault.id],
      schedule: { ...weekdays, expression: "0 0 1 1 *" },
    });
    await client.beta.vaults.archive(vault.id);
    const run = await client.beta.deployments.run(id);
    expect(run).toMatchObject({
      session_id: null,
      error: { type: "vault_archived_error", message: expect.any(String) },
    });
    expect((await client.beta.deployments.retrieve(id)).status).toBe("active");
    clock.atMs = Date.parse("2026-12-31T23:10:00Z");
    const paused = await eventually(async () => {
      const found = await client.beta.deployments.retrieve(id);
      return found.status === "paused" ? found : undefined;
    });
    expect(paused.paused_reason).toEqual({ type: "error", error: { type: "vault_archived_error" } });
    expect((await client.beta.deployments.pause(id)).paused_reason?.type).toBe("error");
    const failed = await all(client.beta.deploymentRuns.list({ deployment_id: id, has_error: true }));
    expect(failed.map(({ trigger_context }) => trigger_context.type)).toEqual(["schedule", "manual"]);
  });

  it("ends for good when it is archived, by itself or with its agent", async () => {
    const other = await client.beta.agents.create({ name: "other", model: "claude-test" });
    const one = await newDeployment({ schedule: weekdays });
    const two = await newDeployment({ agent: other.id });
    const archived = await client.beta.deployments.archive(one.id);
    expect(archived).toMatchObject({ status: "active", schedule: { upcoming_runs_at: [] } });
    expect(archived.archived_at).not.toBeNull();
    expect(await client.beta.deployments.archive(one.id)).toEqual(archived);
    await client.beta.agents.archive(other.id);
    for (const { id } of [one, two]) {
      expect((await client.beta.deployments.retrieve(id)).archived_at).not.toBeNull();
      for (const call of [
        () => client.beta.deployments.run(id),
        () => client.beta.deployments.pause(id),
        () => client.beta.deployments.unpause(id),
        () => client.beta.deployments.update(id, { name: "x" }),
      ])
        expect(await failureOf(call())).toMatchObject({
          status: 400,
          error: { details: { reason: "DEPLOYMENT_ARCHIVED" } },
        });
    }
  });
});

describe("lists", () => {
  it("page through deployments by agent, status and time, and through runs by what started them", async () => {
    const mine = (await client.beta.agents.create({ name: "mine", model: "claude-test" })).id;
    const made: string[] = [];
    for (let at = 0; at < 3; at++) made.unshift((await newDeployment({ agent: mine })).id);
    await client.beta.deployments.pause(made[0]!);
    await client.beta.deployments.archive(made[1]!);
    const ids = async (params: Anthropic.Beta.DeploymentListParams) =>
      (await all(client.beta.deployments.list({ agent_id: mine, limit: 1, ...params }))).map(({ id }) => id);
    expect(await ids({})).toEqual([made[0], made[2]]);
    expect(await ids({ include_archived: true })).toEqual(made);
    expect(await ids({ status: "paused" })).toEqual([made[0]]);
    expect(await ids({ status: "active" })).toEqual([made[2]]);
    expect(await ids({ "created_at[gte]": "2099-01-01T00:00:00Z" })).toEqual([]);
    expect(await ids({ "created_at[lte]": "2099-01-01T00:00:00Z" })).toHaveLength(2);
    const runs: string[] = [];
    for (let at = 0; at < 3; at++) runs.unshift((await client.beta.deployments.run(made[2]!)).id);
    const listed = async (params: Anthropic.Beta.DeploymentRunListParams) =>
      (await all(client.beta.deploymentRuns.list({ deployment_id: made[2]!, limit: 2, ...params }))).map(
        ({ id }) => id,
      );
    expect(await listed({})).toEqual(runs);
    expect(await listed({ has_error: false, trigger_type: "manual" })).toEqual(runs);
    expect(await listed({ has_error: true })).toEqual([]);
    expect(await listed({ trigger_type: "schedule" })).toEqual([]);
    expect(await listed({ "created_at[gt]": "2099-01-01T00:00:00Z" })).toEqual([]);
    expect(await listed({ deployment_id: "depl_nobody" })).toEqual([]);
  });

  it("of large deployments have fewer on a page, and miss none", async () => {
    const big = (await client.beta.agents.create({ name: "big", model: "claude-test" })).id;
    const text = "x".repeat(750_000);
    for (let at = 0; at < 3; at++) await newDeployment({ agent: big, initial_events: [say(text)] });
    const deployments = server.client(DeploymentService);
    const first = await deployments.listDeployments({ agentId: big, pageSize: 100 });
    expect([first.deployments.length, first.nextPageToken !== ""]).toEqual([2, true]);
    const rest = await deployments.listDeployments({ agentId: big, pageToken: first.nextPageToken });
    expect([rest.deployments.length, rest.nextPageToken]).toEqual([1, ""]);
  });
});

describe("bad requests", () => {
  const outcome = { type: "user.define_outcome", rubric: { type: "text", content: "It is short." } };
  const cases: [what: string, change: object, field: string][] = [
    ["no name", { name: "" }, "name"],
    ["no event", { initial_events: [] }, "initial_events"],
    ["51 events", { initial_events: Array(51).fill(say("x")) }, "initial_events"],
    ["an event of another type", { initial_events: [{ type: "user.interrupt" }] }, "initial_events[0].type"],
    [
      "a message without text",
      { initial_events: [{ type: "user.message", content: [] }] },
      "initial_events[0].content",
    ],
    [
      "an outcome without a rubric",
      { initial_events: [{ type: "user.define_outcome", description: "d" }] },
      "initial_events[0].rubric",
    ],
    [
      "two outcomes",
      { initial_events: Array(2).fill({ ...outcome, description: "d" }) },
      "initial_events[1].type",
    ],
    [
      "only a system message",
      { initial_events: [{ type: "system.message", content: [{ type: "text", text: "x" }] }] },
      "initial_events",
    ],
    [
      "a schedule without a zone",
      { schedule: { type: "cron", expression: "* * * * *" } },
      "schedule.timezone",
    ],
    ["a zone that there is not", { schedule: { ...weekdays, timezone: "Mars" } }, "schedule.timezone"],
    ["a shortcut", { schedule: { ...weekdays, expression: "@daily" } }, "schedule.expression"],
    ["six fields", { schedule: { ...weekdays, expression: "0 0 9 * * *" } }, "schedule.expression"],
    ["overrides", { agent: { type: "agent_with_overrides", id: "agent_x" } }, "agent.type"],
    ["a name with half a character", { name: "x\ud800" }, "name"],
    ["a pair with half a character", { metadata: { a: "\udc00" } }, 'metadata["a"]'],
    ["a version beyond all", { agent: { type: "agent", id: "agent_x", version: 1e12 } }, "agent.version"],
    ["51 vaults", { vault_ids: Array(51).fill("vlt_x") }, "vault_ids"],
    ["a field that there is not", { scedule: weekdays }, "scedule"],
  ];
  it.each(cases)("%s is refused with 400, and the path", async (_, change, field) => {
    const { error, status } = await failureOf(newDeployment(change as Partial<Params>));
    expect([status, error.details.field]).toEqual([400, field]);
  });

  it("say what is not there, and nothing of another workspace's", async () => {
    expect(await failureOf(newDeployment({ agent: "agent_nobody" }))).toMatchObject({ status: 404 });
    expect(await failureOf(newDeployment({ environment_id: "env_nobody" }))).toMatchObject({
      status: 404,
      error: { details: { error_code: "environment_not_found" } },
    });
    expect(await failureOf(client.beta.deployments.retrieve("depl_nobody"))).toMatchObject({ status: 404 });
    expect(await failureOf(client.beta.deploymentRuns.retrieve("drun_nobody"))).toMatchObject({
      status: 404,
    });
    const both = client.beta.deployments.list({ status: "active", include_archived: true });
    expect(await failureOf(both)).toMatchObject({ status: 400 });
    const nobody = server.client(DeploymentService, await server.localKey("harness"));
    expect((await failure(nobody.listDeployments({}))).reason).toBe("ROLE_NOT_ALLOWED");
    const never = { seconds: 10n ** 18n, nanos: 0 };
    const ours = server.client(DeploymentService);
    for (const call of [
      () => ours.listDeployments({ createdBefore: never }),
      () => ours.listDeploymentRuns({ createdBefore: never }),
    ])
      expect(await failure(call())).toMatchObject({
        reason: "INVALID_FIELD",
        metadata: { field: "created_before" },
      });
  });
});

describe("the command", () => {
  const env = () => ({ TENDON_URL: server.url, TENDON_API_KEY: server.adminKey });
  const tendon = (...args: string[]) => installation.tendon(["deployment", ...args], { env: env() });
  const json = async (...args: string[]) => {
    const { code, stdout, stderr } = await tendon(...args, "--json");
    expect({ args, code, stderr }).toMatchObject({ code: 0 });
    return JSON.parse(stdout) as Record<string, never>;
  };

  it("makes, runs, pauses, changes and archives a deployment by its name, and tells of its runs", async () => {
    const said = ["--message", "Write it.", "--system", "Be brief.", "--max-turns", "9", "--metadata", "a=b"];
    const when = ["--cron", "0 9 * * 1-5", "--time-zone", "Europe/Berlin"];
    const what = ["--name", "by command", "--agent", agent, "--env", environment_id];
    const made = await json("create", ...what, ...said, ...when);
    expect(made).toMatchObject({
      id: expect.stringMatching(/^depl_/),
      status: "DEPLOYMENT_STATUS_ACTIVE",
      spec: {
        name: "by command",
        initial_events: [{ type: "user.message" }, { type: "system.message" }],
        budget: { max_turns: "9" },
        schedule: { expression: "0 9 * * 1-5", time_zone: "Europe/Berlin" },
      },
    });
    const run = await json("run", "by command");
    expect(run).toMatchObject({
      trigger: "DEPLOYMENT_TRIGGER_MANUAL",
      session_id: expect.stringMatching(/^sesn_/),
    });
    expect(await json("pause", "by command")).toMatchObject({ status: "DEPLOYMENT_STATUS_PAUSED" });
    const [runs, get, list] = await Promise.all([
      json("runs", "by command"),
      tendon("get", made.id!),
      tendon("list", "--status", "paused"),
    ]);
    expect(runs).toMatchObject({ runs: [{ id: run.id }] });
    expect(get.stdout).toMatch(/schedule +0 9 \* \* 1-5 in Europe\/Berlin/);
    expect(list.stdout).toContain("by command");
    const changed = await json(
      ...["update", "by command", "--name", "renamed", "--message", "Write more.", "--message", "And more."],
      ...["--outcome", "It is written.", "--rubric", "contains: it"],
      ...["--clear", "schedule", "--clear", "budget", "--metadata", "a=", "--metadata", "c=d"],
    );
    expect(changed).toMatchObject({
      id: made.id,
      spec: {
        name: "renamed",
        agent_id: agent,
        initial_events: [
          { type: "user.message" },
          { type: "user.message" },
          { type: "user.define_outcome", id: "", payload: expect.stringContaining("It is written.") },
        ],
        metadata: { c: "d" },
      },
    });
    expect(changed.spec).not.toHaveProperty("schedule");
    expect(changed.spec).not.toHaveProperty("budget");
    const wrong = await Promise.all([
      tendon("update", "renamed"),
      tendon("update", "renamed", "--system", "alone"),
      tendon("update", "renamed", "--clear", "name"),
      tendon("update", "renamed", "--clear", "schedule", ...when),
    ]);
    expect(wrong.map(({ code }) => code)).toEqual([2, 2, 2, 2]);
    expect(await json("archive", made.id!)).toHaveProperty("archived_at");
    const refused = await Promise.all([
      tendon("run", made.id!),
      tendon("create", ...what, ...said, "--cron", "@daily"),
    ]);
    expect(refused.map(({ code }) => code)).toEqual([1, 2]);
  });
});

async function failureOf(call: PromiseLike<unknown>) {
  const thrown = await Promise.resolve(call).then(
    () => {
      throw new Error("was not refused");
    },
    (error: unknown) => error,
  );
  const { status, error } = thrown as {
    status: number;
    error: { error: { type: string; details: { field?: string; error_code?: string; reason: string } } };
  };
  return { status, error: error.error };
}
