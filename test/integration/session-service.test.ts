import { timestampDate } from "@bufbuild/protobuf/wkt";
import { credentials, Client as GrpcClient, Metadata } from "@grpc/grpc-js";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import { SessionStatus, StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { failure } from "../kit/failure.ts";
import {
  brained,
  collect,
  type SessionCallers,
  type Sessions,
  say,
  startSessionCallers,
} from "../kit/session-callers.ts";
import { createWorld, type SessionReplica, type SessionWorld } from "../kit/session-rig.ts";

let callers: SessionCallers;
let world: SessionWorld;
let other: SessionWorld;
let replica: SessionReplica;
let client: Sessions;
let harness: Sessions;
let stranger: Sessions;

beforeAll(async () => {
  callers = await startSessionCallers();
  ({ world, other, replica, client, harness, stranger } = callers);
});

afterAll(() => callers?.stop());

describe("creation", () => {
  test("a session holds the agent as it is now, the default environment and its first events", async () => {
    const { session } = await client.createSession({
      agentId: world.agentId,
      title: "first",
      metadata: { a: "1" },
      budget: { maxTokens: 9007199254740993n },
      initialEvents: [say("one"), say("two")],
    });
    expect(session).toMatchObject({
      workspaceId: world.workspaceId,
      environmentId: world.environmentId,
      title: "first",
      metadata: { a: "1" },
      status: SessionStatus.IDLE,
      head: 2n,
      agent: { id: world.agentId, version: 1, spec: { name: "tester" } },
      budget: { maxTokens: 9007199254740993n },
    });
    const { events } = await client.getEvents({ sessionId: session!.id });
    expect(events.map(({ payload }) => payload)).toEqual([say("one").payload, say("two").payload]);
    expect((await client.getSession({ sessionId: session!.id })).session).toEqual(session);
  });

  test("a request id makes a repeat safe, and is refused for other content", async () => {
    const request = { requestId: newId("request"), agentId: world.agentId, initialEvents: [say("once")] };
    const answers = await Promise.all(Array.from({ length: 5 }, () => client.createSession(request)));
    expect(new Set(answers.map(({ session }) => session!.id)).size).toBe(1);
    expect(answers[0]!.session!.head).toBe(1n);
    const changed = { ...request, initialEvents: [say("twice")] };
    expect(await failure(client.createSession(changed))).toMatchObject({ reason: "REQUEST_ID_REUSED" });
  });

  test.each([
    ["another workspace's agent", () => ({ agentId: other.agentId }), "NOT_FOUND", undefined],
    [
      "another workspace's environment",
      () => ({ agentId: world.agentId, environmentId: other.environmentId }),
      "NOT_FOUND",
      undefined,
    ],
    [
      "an initial event that is not the caller's",
      () => ({ agentId: world.agentId, initialEvents: [{ type: "agent.message", payload: "{}" }] }),
      "EVENT_TYPE_NOT_ALLOWED",
      "initial_events[0].type",
    ],
    [
      "an initial event of the wrong shape",
      () => ({ agentId: world.agentId, initialEvents: [say("a"), say("")] }),
      "INVALID_FIELD",
      "initial_events[1].payload.content[0].text",
    ],
    ["a title with a NUL", () => ({ agentId: world.agentId, title: "a\0b" }), "INVALID_FIELD", "title"],
    ["no agent", () => ({ agentId: "" }), "INVALID_FIELD", "agent_id"],
  ])("%s is refused and leaves nothing", async (_, request, reason, field) => {
    const count = async () => (await replica.pool.query("select 1 from sessions")).rowCount;
    const before = await count();
    const error = await failure(client.createSession(request()));
    expect(error.reason).toBe(reason);
    if (field) expect(error.metadata.field).toBe(field);
    expect(await count()).toBe(before);
  });
});

test("another workspace's sessions, unknown ones and what is no id are NOT_FOUND for every method", async () => {
  const hidden = await world.newSession();
  for (const sessionId of [hidden, newId("session"), "sesn_\0", "x"]) {
    const calls = [
      () => stranger.getSession({ sessionId }),
      () => stranger.updateSession({ sessionId, title: "mine" }),
      () => stranger.archiveSession({ sessionId }),
      () => stranger.deleteSession({ sessionId }),
      () => stranger.emitEvents({ sessionId, events: [say("hi")] }),
      () => stranger.getEvents({ sessionId }),
      () => stranger.wakeSession({ sessionId }),
      () => stranger.forkSession({ sessionId }),
      () => collect(stranger.watchEvents({ sessionId })),
      () => collect(stranger.readPayload({ sessionId, eventId: newId("event") })),
    ];
    for (const call of calls)
      expect([String(call), (await failure(call())).reason]).toEqual([String(call), "NOT_FOUND"]);
  }
  expect((await client.getSession({ sessionId: hidden })).session?.title).toBe("");
});

describe("byte for byte", () => {
  const deep = `{"a":${'{"a":'.repeat(5_000)}1${"}".repeat(5_000)}}`;
  test.each([
    ["key order of numbers", '{"2":1,"1":2}'],
    ["2^63", '{"n":9223372036854775808}'],
    ["1.0 and exponents", '{"n":1.0,"m":1e400,"k":-0}'],
    ["duplicate keys", '{"a":1,"a":2}'],
    ["pretty-printed", '{\n  "a" : [\n\t1 ]\r\n}\n'],
    ["CR, U+2028 and U+2029 as they are", '{"a":"\u2028\u2029\\r"}\r'],
    ["an escaped NUL", '{"a":"\\u0000"}'],
    ["characters of four bytes", '{"a":"\u{1f600}\u{10ffff}"}'],
    ["lone surrogate escapes", '{"a":"\\ud800","b":"\\udc00\\ud83d"}'],
    ["escapes that need none", '{"\\u0061":"\\/\\u00e9"}'],
    ["a string of 1 MiB", `{"a":"${"é".repeat(512 * 1024 - 8)}"}`],
    ["deep nesting", deep],
    ["what arrays and quotes of SQL would break on", '{"a":"{},\\"NULL\\" \'; drop table events --\\\\"}'],
  ])("%s: a payload and an internal come back as they were sent", async (_, text) => {
    const { sessionId, lease: proof } = await brained(callers);
    await client.emitEvents({ sessionId, events: [{ type: "acme.kept", payload: text }] });
    await harness.emitEvents({ sessionId, lease: proof, events: [{ type: "agent.kept", internal: text }] });
    const { events } = await harness.getEvents({ sessionId, lease: proof, afterPosition: 1n });
    expect(events[0]!.payload).toBe(text);
    expect(events[1]!.payload).toBe("{}");
    expect(events[1]!.internal).toBe(text);
    const watched = client.watchEvents({ sessionId, afterPosition: 1n });
    for await (const { kind } of watched) {
      expect(kind.case === "event" && kind.value.payload).toBe(text);
      break;
    }
  });

  test.each([
    ["no JSON", "{a:1}"],
    ["nothing but blanks", "  "],
    ["a raw line break in a string", '{"a":"\n"}'],
  ])("refused: %s", async (_, payload) => {
    const sessionId = await world.newSession();
    const error = await failure(client.emitEvents({ sessionId, events: [{ type: "acme.a", payload }] }));
    expect(error).toMatchObject({ reason: "INVALID_FIELD", metadata: { field: "events[0].payload" } });
  });

  test("refused: bytes that are no UTF-8", async () => {
    const sessionId = await world.newSession();
    const field = (tag: number, bytes: Buffer) => Buffer.concat([Buffer.from([tag, bytes.length]), bytes]);
    const event = Buffer.concat([
      field(0x12, Buffer.from("acme.a")),
      field(0x22, Buffer.from([0x7b, 0x22, 0xff, 0xfe, 0x22, 0x3a, 0x31, 0x7d])),
    ]);
    const bytes = Buffer.concat([field(0x0a, Buffer.from(sessionId)), field(0x12, event)]);
    const grpc = new GrpcClient(replica.address, credentials.createInsecure());
    const metadata = new Metadata();
    metadata.set(
      "x-principal",
      JSON.stringify({ kind: "client", keyId: "apikey_1", workspaceId: world.workspaceId }),
    );
    const pass = (value: Buffer) => value;
    const code = await new Promise((resolve) =>
      grpc.makeUnaryRequest("/tendon.v1.SessionService/EmitEvents", pass, pass, bytes, metadata, (error) =>
        resolve(error?.code),
      ),
    );
    grpc.close();
    expect(code).toBe(3);
    expect((await client.getEvents({ sessionId })).head).toBe(0n);
  });
});

describe("a session's life", () => {
  test("status, stop reason, usage and processed_at follow what the brain appends", async () => {
    const { sessionId, lease: proof } = await brained(callers);
    const {
      events: [asked],
    } = await client.getEvents({ sessionId });
    await harness.emitEvents({
      sessionId,
      lease: proof,
      events: [
        { type: "session.status_running" },
        { type: "brain.inputs_consumed", payload: JSON.stringify({ event_ids: [asked!.id], turn: 1 }) },
        { type: "span.model_request_start" },
      ],
    });
    expect((await client.getSession({ sessionId })).session?.status).toBe(SessionStatus.RUNNING);
    const usage = {
      input_tokens: 1,
      output_tokens: 2,
      cache_read_input_tokens: 3,
      cache_creation_input_tokens: 4,
    };
    await harness.emitEvents({
      sessionId,
      lease: proof,
      events: [
        { type: "span.model_request_end", payload: JSON.stringify({ model_usage: usage }) },
        {
          type: "session.status_idle",
          payload: '{"stop_reason":{"type":"interrupted"},"stop_details":null}',
        },
      ],
    });
    const { session } = await client.getSession({ sessionId });
    expect(session).toMatchObject({
      status: SessionStatus.IDLE,
      stopReason: StopReason.INTERRUPTED,
      head: 6n,
    });
    expect(session?.usage).toMatchObject({
      inputTokens: 1n,
      outputTokens: 2n,
      cacheReadInputTokens: 3n,
      modelRequests: 1n,
    });
    const { events } = await client.getEvents({ sessionId });
    expect(events[0]!.processedAt).toEqual(events[2]!.createdAt);
    expect(events[1]!.processedAt).toBeUndefined();
  });

  test("an update tells what changed and nothing else; the same again changes nothing", async () => {
    const sessionId = await world.newSession();
    const change = { sessionId, title: "new", metadata: { a: "1", b: "2" } };
    await client.updateSession(change);
    const { session } = await client.updateSession(change);
    expect(session).toMatchObject({ title: "new", metadata: { a: "1", b: "2" }, head: 1n });
    await client.updateSession({ sessionId, metadata: { a: "" } });
    const { events } = await client.getEvents({ sessionId });
    expect(events.map(({ type, payload }) => [type, JSON.parse(payload)])).toEqual([
      ["session.updated", { title: "new", metadata: { a: "1", b: "2" } }],
      ["session.updated", { metadata: { b: "2" } }],
    ]);
    const many = Object.fromEntries(Array.from({ length: 16 }, (_, n) => [`k${n}`, "v"]));
    expect(await failure(client.updateSession({ sessionId, metadata: many }))).toMatchObject({
      reason: "INVALID_FIELD",
      metadata: { field: "metadata" },
    });
  });

  test("archiving ends a session: open calls get results, its brain is fenced, its hands go, clients are refused", async () => {
    const { sessionId, lease: proof } = await brained(callers);
    await harness.emitEvents({
      sessionId,
      lease: proof,
      events: [
        { type: "session.status_running" },
        { id: "sevt_call", type: "agent.tool_use", payload: '{"name":"bash"}' },
      ],
    });
    expect((await failure(client.archiveSession({ sessionId }))).reason).toBe("SESSION_RUNNING");
    const { session } = await client.archiveSession({ sessionId, interrupt: true });
    expect(session).toMatchObject({ status: SessionStatus.TERMINATED, head: 5n });
    expect(timestampDate(session!.archivedAt!).getTime()).toBeGreaterThan(0);
    const { events } = await client.getEvents({ sessionId, afterPosition: 3n });
    expect(events.map(({ type }) => type)).toEqual(["agent.tool_result", "session.status_terminated"]);
    expect(JSON.parse(events[0]!.payload)).toMatchObject({ tool_use_id: "sevt_call", is_error: true });
    expect(replica.released).toContain(sessionId);
    const brain = harness.emitEvents({ sessionId, lease: proof, events: [{ type: "agent.message" }] });
    expect((await failure(brain)).reason).toBe("LEASE_FENCED");
    expect((await failure(client.emitEvents({ sessionId, events: [say("more")] }))).reason).toBe(
      "SESSION_ARCHIVED",
    );
    expect((await failure(client.updateSession({ sessionId, title: "x" }))).reason).toBe("SESSION_ARCHIVED");
    expect((await failure(client.wakeSession({ sessionId }))).reason).toBe("SESSION_ARCHIVED");
    expect((await client.archiveSession({ sessionId })).session?.head).toBe(5n);
    const told = await collect(client.watchEvents({ sessionId, afterPosition: 4n }));
    expect(told.map(({ kind }) => kind.case)).toEqual(["event", "progress"]);
  });

  test("deleting leaves nothing of it in any table", async () => {
    const { sessionId, lease: proof } = await brained(callers);
    await harness.emitEvents({
      sessionId,
      lease: proof,
      events: [{ type: "brain.inputs_consumed", payload: '{"event_ids":["sevt_x"]}' }],
    });
    expect((await failure(client.deleteSession({ sessionId }))).reason).toBe("SESSION_RUNNING");
    await client.deleteSession({ sessionId, interrupt: true });
    expect((await failure(client.deleteSession({ sessionId }))).reason).toBe("NOT_FOUND");
    expect((await failure(client.emitEvents({ sessionId, events: [say("hi")] }))).reason).toBe("NOT_FOUND");
    const { rows } = await replica.pool.query<{ table_name: string }>(
      "select table_name from information_schema.columns where column_name = 'session_id' and table_schema = 'public'",
    );
    expect(rows.map(({ table_name }) => table_name)).toEqual(
      expect.arrayContaining(["events", "consumed_inputs"]),
    );
    for (const { table_name } of rows) {
      const found = await replica.pool.query(`select 1 from ${table_name} where session_id = $1`, [
        sessionId,
      ]);
      expect([table_name, found.rowCount]).toEqual([table_name, 0]);
    }
  });

  test("waking says whether there is work", async () => {
    const sessionId = await world.newSession();
    expect((await client.wakeSession({ sessionId })).hasWork).toBe(false);
    await client.emitEvents({ sessionId, events: [say("go")] });
    expect((await client.wakeSession({ sessionId })).hasWork).toBe(true);
  });
});

test("lists are paged both ways with filters; a token of another list is refused", async () => {
  const mine = await createWorld(replica.pool);
  const lister = callers.clientOf(mine.workspaceId);
  const ids: string[] = [];
  for (let n = 0; n < 7; n++) ids.push(await mine.newSession());
  await lister.archiveSession({ sessionId: ids[0]! });
  const pages = async (request: object) => {
    const seen: string[] = [];
    for (let pageToken = ""; ; ) {
      const page = await lister.listSessions({ pageSize: 2, pageToken, ...request });
      seen.push(...page.sessions.map(({ id }) => id));
      pageToken = page.nextPageToken;
      if (pageToken === "") return seen;
    }
  };
  expect(await pages({})).toEqual(ids.slice(1).reverse());
  expect(await pages({ ascending: true, includeArchived: true })).toEqual(ids);
  expect(await pages({ statuses: [SessionStatus.TERMINATED], includeArchived: true })).toEqual([ids[0]]);
  expect(await pages({ agentId: world.agentId })).toEqual([]);
  const { nextPageToken } = await lister.listSessions({ pageSize: 2 });
  const foreign = lister.listSessions({ pageToken: nextPageToken, ascending: true });
  expect((await failure(foreign)).reason).toBe("INVALID_PAGE_TOKEN");
});
