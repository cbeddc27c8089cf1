/** What clients of the HTTP API feel beside the resources: routes and methods, headers, answers to calls, running sessions. */
import Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { apiRoutes } from "../../server/http/api/routes.ts";
import { sessionFaults } from "../kit/declared-shapes.ts";
import { eventually } from "../kit/eventually.ts";
import { followInstructions, type Gate, gate, text, toolUse, turn } from "../kit/fake-messages-api.ts";
import { type SeenEvent, startWorkerRig, type WorkerRig } from "../kit/worker-rig.ts";

let rig: WorkerRig;
/** The model does not end its answer to "hold on" before this is open. */
let held: Gate;

beforeAll(async () => {
  held = gate();
  rig = await startWorkerRig({
    script: (request) => {
      const last = JSON.stringify(request.messages.at(-1));
      if (last.includes("hold on")) return turn([text("never ", "whole")], { before: { end: held.opened } });
      if (last.includes("ask the user")) return turn([toolUse("ask_user", { q: "which?" })]);
      if (last.includes("use bash"))
        return turn([toolUse("bash", { command: "true" }), toolUse("glob", { pattern: "*" })]);
      return followInstructions(request);
    },
  });
});
afterAll(async () => {
  held?.open();
  await rig?.stop();
});

const ASK_USER = {
  type: "custom" as const,
  name: "ask_user",
  description: "Asks.",
  input_schema: { type: "object" as const, properties: {} },
};

/** Of a cloud environment, for which there is no hand. */
async function talk(words: string, tools: Anthropic.Beta.AgentCreateParams["tools"] = [ASK_USER]) {
  const agent = await rig.client.beta.agents.create({ name: "helper", model: "claude-test", tools: tools! });
  const environment = await rig.client.beta.environments.create({ name: `env ${agent.id}` });
  const session = await rig.client.beta.sessions.create({
    agent: agent.id,
    environment_id: environment.id,
  });
  await rig.say(session.id, words);
  return session.id;
}

const ofType = (events: readonly SeenEvent[], type: string) => events.filter((event) => event.type === type);

const http = (path: string, init: RequestInit = {}) =>
  rig.server.fetch(path, {
    ...init,
    headers: { authorization: `Bearer ${rig.server.adminKey}`, ...init.headers },
  });

/** Of a route's path, with ids of things that are not there. */
const pathOf = (path: string) => path.replace(/\{(\w+)\}/g, "none");
const ROUTES = apiRoutes(systemClock);

describe("routes", () => {
  it("are all the admin's, but for the three by which workers take work", async () => {
    const closed: string[] = [];
    for (const { method, path } of ROUTES) {
      const body = method === "POST" ? { body: "{}" } : {};
      const response = await http(pathOf(path), { method, ...body });
      await response.body?.cancel();
      if (response.status === 401 || response.status === 403) closed.push(`${method} ${path}`);
      expect([path, response.status < 500]).toEqual([path, true]);
    }
    const item = "/v1/environments/{environment_id}/work";
    expect(closed).toEqual([
      `GET ${item}/poll`,
      `POST ${item}/{work_id}/ack`,
      `POST ${item}/{work_id}/heartbeat`,
    ]);
  });

  it("answer any other method with 405 and the methods that there are, what is no route with 404, in the envelope", async () => {
    for (const path of new Set(ROUTES.map(({ path }) => path))) {
      const response = await http(pathOf(path), { method: "PATCH", body: "{}" });
      expect([path, response.status, response.headers.get("allow")]).toEqual([
        path,
        405,
        expect.stringMatching(/GET|POST|DELETE/),
      ]);
      expect(await response.json()).toEqual({
        type: "error",
        error: { type: "invalid_request_error", message: expect.stringContaining("answers") },
        request_id: response.headers.get("request-id"),
      });
      const below = await http(`${pathOf(path)}/nothing/here/at/all`);
      expect([path, below.status, await below.json()]).toEqual([
        path,
        404,
        expect.objectContaining({ type: "error", request_id: below.headers.get("request-id") }),
      ]);
    }
  });
});

describe("headers and queries", () => {
  it.each([
    ["a key as bearer", { "x-api-key": "" }, ""],
    ["a key of its own header", { authorization: "" }, ""],
    ["the newer version", { "anthropic-version": "2026-10-21" }, ""],
    ["the older version", { "anthropic-version": "2023-06-01" }, ""],
    ["a beta that nobody knows", { "anthropic-beta": "tomorrow-2031-01-01,managed-agents-2026-04-01" }, ""],
    ["?beta=true", {}, "?beta=true"],
    ["a query that nobody knows", {}, "?colour=red&limit=1&x%5B%5D=y"],
  ])("are taken: %s", async (_name, headers, query) => {
    const keys = { authorization: `Bearer ${rig.server.adminKey}`, "x-api-key": rig.server.adminKey };
    const sent = Object.entries({ ...keys, ...headers }).filter(([, value]) => value !== "");
    const response = await rig.server.fetch(`/v1/agents${query}`, { headers: sent });
    expect([response.status, await response.json()]).toEqual([
      200,
      expect.objectContaining({ data: expect.any(Array) }),
    ]);
  });

  it("of a 409 that is meant say that trying again is no use", async () => {
    const agent = await rig.client.beta.agents.create({ name: "a", model: "m" });
    const refused = await http(`/v1/agents/${agent.id}`, {
      method: "POST",
      body: JSON.stringify({ version: 7, name: "b" }),
    });
    expect([refused.status, refused.headers.get("x-should-retry")]).toEqual([409, "false"]);
    // So the official client, which repeats every other 409, asks once.
    let asked = 0;
    const counting: typeof fetch = (url, init) => {
      asked += 1;
      return fetch(url, init);
    };
    const { adminKey, url } = rig.server;
    const client = new Anthropic({ baseURL: url, apiKey: adminKey, maxRetries: 3, fetch: counting });
    const update = client.beta.agents.update(agent.id, { version: 7, name: "b" });
    await expect(update).rejects.toThrow(Anthropic.ConflictError);
    expect(asked).toBe(1);
  });
});

describe("an answer to a call", () => {
  const send = (sessionId: string, event: object) =>
    rig.client.beta.sessions.events.send(sessionId, { events: [event as never] });
  const content = (words: string) => [{ type: "text", text: words }];

  it("of a custom tool counts once: repeated it gets the one that stands, another or an unknown one 400", async () => {
    const sessionId = await talk("ask the user");
    const [call] = ofType(await rig.idle(sessionId, "requires_action"), "agent.custom_tool_use");
    const answer = (words: string, id = call!.id) => ({
      type: "user.custom_tool_result",
      custom_tool_use_id: id,
      content: content(words),
    });
    const { data: first } = await send(sessionId, answer("this"));
    await rig.idle(sessionId, "end_turn");
    const events = await rig.events(sessionId);
    expect((await send(sessionId, answer("this"))).data?.map(({ id }) => id)).toEqual(
      first?.map(({ id }) => id),
    );
    await expect(send(sessionId, answer("that"))).rejects.toMatchObject({ status: 400 });
    await expect(send(sessionId, answer("this", "sevt_nobody"))).rejects.toMatchObject({ status: 400 });
    expect(await rig.events(sessionId)).toEqual(events);
  });

  it("by a confirmation counts once, and after an interrupt not at all", async () => {
    const asks = { enabled: true, permission_policy: { type: "always_ask" as const } };
    const toolset = { type: "agent_toolset_20260401" as const, default_config: asks };
    const sessionId = await talk("run: echo x", [toolset]);
    const [call] = ofType(await rig.idle(sessionId, "requires_action"), "agent.tool_use");
    const verdict = (result: string) => ({
      type: "user.tool_confirmation",
      tool_use_id: call!.id,
      result,
      ...(result === "deny" && { deny_message: "not that" }),
    });
    await send(sessionId, verdict("deny"));
    await rig.idle(sessionId, "end_turn");
    const events = await rig.events(sessionId);
    expect(ofType(events, "agent.tool_result")).toMatchObject([{ tool_use_id: call!.id, is_error: true }]);
    await send(sessionId, verdict("deny"));
    await expect(send(sessionId, verdict("allow"))).rejects.toMatchObject({ status: 400 });
    expect(await rig.events(sessionId)).toEqual(events);

    const other = await talk("ask the user");
    const [open] = ofType(await rig.idle(other, "requires_action"), "agent.custom_tool_use");
    await send(other, { type: "user.interrupt" });
    const closed = await rig.idle(other, "end_turn");
    const late = { type: "user.custom_tool_result", custom_tool_use_id: open!.id, content: content("late") };
    await expect(send(other, late)).rejects.toMatchObject({ status: 400 });
    expect(await rig.events(other)).toEqual(closed);
  });

  it("is given by the official client's runner of tools, for the calls that wait: not for one that was interrupted", async () => {
    const asked: unknown[] = [];
    const tool = {
      ...ASK_USER,
      parse: (input: unknown) => input,
      run: (input: unknown) => {
        asked.push(input);
        return "this one";
      },
    };
    const serve = async (sessionId: string) => {
      const options = { tools: [tool as never], maxIdleMs: 1 };
      for await (const _ of rig.client.beta.sessions.events.toolRunner(sessionId, options));
    };
    const sessionId = await talk("ask the user");
    await rig.idle(sessionId, "requires_action");
    await serve(sessionId);
    await rig.idle(sessionId, "end_turn");
    expect(asked).toEqual([{ q: "which?" }]);

    const other = await talk("ask the user");
    const [open] = ofType(await rig.idle(other, "requires_action"), "agent.custom_tool_use");
    await send(other, { type: "user.interrupt" });
    const events = await rig.idle(other, "end_turn");
    const result = { custom_tool_use_id: open!.id, is_error: true };
    expect(ofType(events, "user.custom_tool_result")).toMatchObject([result]);
    const { data } = await rig.client.beta.sessions.events.list(other, {
      types: ["user.custom_tool_result"],
    });
    expect(data).toMatchObject([result]);
    await serve(other);
    expect(asked).toHaveLength(1);
  });
});

describe("a turn", () => {
  it("is not offered a tool that its agent disables, and a call of it is an error that the model sees", async () => {
    const configs = [{ name: "bash" as const, enabled: false }];
    const toolset = { type: "agent_toolset_20260401" as const, configs };
    const sessionId = await talk("use bash", [toolset]);
    const [bash] = await rig.calls(sessionId, 1);
    await rig.client.beta.sessions.events.send(sessionId, { events: [{ type: "user.interrupt" }] });
    const events = await rig.idle(sessionId, "end_turn");
    const offered = rig.api.requests.findLast(({ body }) => body.includes("use bash"))!.json as {
      tools: { name: string }[];
    };
    expect(offered.tools.map(({ name }) => name)).toContain("glob");
    expect(offered.tools.map(({ name }) => name)).not.toContain("bash");
    const results = ofType(events, "agent.tool_result").filter(({ tool_use_id }) => tool_use_id === bash!.id);
    expect(bash).toMatchObject({ name: "bash", evaluated_permission: "deny" });
    expect(results).toMatchObject([{ is_error: true }]);
  });

  it("has used in all what the model reported for each of its requests", async () => {
    const sessionId = await talk("ask the user");
    const [call] = ofType(await rig.idle(sessionId, "requires_action"), "agent.custom_tool_use");
    const answer = { type: "user.custom_tool_result" as const, custom_tool_use_id: call!.id };
    await rig.client.beta.sessions.events.send(sessionId, { events: [answer] });
    const events = await rig.idle(sessionId, "end_turn");
    const ends = ofType(events, "span.model_request_end").map(
      ({ model_usage }) => model_usage as { input_tokens: number; output_tokens: number },
    );
    expect(ends).toHaveLength(2);
    const sum = (of: "input_tokens" | "output_tokens") => ends.reduce((all, end) => all + end[of], 0);
    const totals = { input_tokens: sum("input_tokens"), output_tokens: sum("output_tokens") };
    expect((await rig.client.beta.sessions.retrieve(sessionId)).usage).toMatchObject(totals);
    expect(ofType(events, "session.usage").at(-1)).toMatchObject({ usage: totals });
  });

  it("that is interrupted ends with end_turn: its request has an end, and nothing of the answer that was cut is said", async () => {
    const sessionId = await talk("hold on");
    const { sessions } = rig.client.beta;
    const stream = await sessions.events.stream(sessionId, { event_deltas: ["agent.message"] });
    await eventually(
      async () => ofType(await rig.events(sessionId), "span.model_request_start").length === 1,
    );
    await sessions.events.send(sessionId, { events: [{ type: "user.interrupt" }] });
    const shown: string[] = [];
    for await (const { type } of stream) {
      shown.push(type);
      if (type === "session.status_idle") break;
    }
    expect(shown).not.toContain("agent.message");
    const end = shown.filter((type) => !type.startsWith("user.")).slice(-4);
    expect(end).toEqual([
      "span.model_request_end",
      "session.thread_status_idle",
      "session.usage",
      "session.status_idle",
    ]);
    const events = await rig.idle(sessionId, "end_turn");
    expect(ofType(events, "agent.message")).toEqual([]);
    expect(ofType(events, "span.model_request_end")).toMatchObject([{ is_error: true }]);
  });

  it("that cannot be run says so with an error that clients know, and rests", async () => {
    const agent = await rig.client.beta.agents.create({
      name: "unset",
      model: "claude-test",
      tendon: { loop_settings: { context: { window_tokens: "many" } } },
    } as never);
    const environment = await rig.client.beta.environments.create({ name: `env ${agent.id}` });
    const made = { agent: agent.id, environment_id: environment.id };
    const { id } = await rig.client.beta.sessions.create(made);
    await rig.say(id, "hello");
    const events = await rig.idle(id, "retries_exhausted");
    const reason = "LOOP_NOT_CONFIGURED";
    expect(ofType(events, "session.error")).toMatchObject([
      { error: { type: "unknown_error", retry_status: { type: "exhausted" }, reason } },
    ]);
  });

  it("that runs keeps its session from being archived or deleted, unless it is interrupted for that", async () => {
    const sessionId = await talk("hold on");
    const { sessions } = rig.client.beta;
    await eventually(async () => (await sessions.retrieve(sessionId)).status === "running");
    const refused = { status: 400, error: { error: { type: "invalid_request_error" } } };
    await expect(sessions.archive(sessionId)).rejects.toMatchObject(refused);
    await expect(sessions.delete(sessionId)).rejects.toMatchObject(refused);
    expect((await sessions.retrieve(sessionId)).status).toBe("running");
    const archived = await rig.client.post<{ status: string }>(`/v1/sessions/${sessionId}/archive`, {
      query: { interrupt: true },
    });
    expect(archived.status).toBe("terminated");
    const other = await talk("hold on");
    await eventually(async () => (await sessions.retrieve(other)).status === "running");
    const gone = await rig.client.delete(`/v1/sessions/${other}`, { query: { interrupt: true } });
    expect(gone).toEqual({ id: other, type: "session_deleted" });
  });
});

it("says all that was said here as the official client declares it", async () => {
  expect(await sessionFaults(rig.client)).toEqual([]);
});
