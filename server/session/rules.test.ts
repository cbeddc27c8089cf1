import { create } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { type EventInput, EventInputSchema, LeaseProofSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import type { Principal } from "../ports/principal.ts";
import { checkEmit, checkEvents, checkMaySee } from "./rules.ts";

const CLIENT: Principal = { kind: "client", keyId: "apikey_1", workspaceId: "wrkspc_1" };
const ADMIN: Principal = { kind: "admin", keyId: "apikey_2", workspaceId: undefined };
const HARNESS: Principal = { kind: "harness", keyId: "apikey_3", workspaceId: undefined };
const WORKER: Principal = {
  kind: "worker",
  keyId: "envkey_1",
  workspaceId: "wrkspc_1",
  environmentId: "env_1",
};
const TOKEN: Principal = { kind: "session", sessionId: "sesn_1", workspaceId: "wrkspc_1", epoch: 1n };
const WORK_ITEM: Principal = {
  kind: "work_item",
  workId: "work_1",
  claim: 1,
  isLost: false,
  sessionId: "sesn_1",
  workspaceId: "wrkspc_1",
  environmentId: "env_1",
};
const LEASE = create(LeaseProofSchema, { leaseId: "lease_1", epoch: 1n });

const input = (
  type: string,
  payload: unknown = {},
  over: { id?: string; threadId?: string; internal?: string } = {},
) =>
  create(EventInputSchema, {
    type,
    payload: typeof payload === "string" ? payload : JSON.stringify(payload),
    ...over,
  });

function outcome(
  principal: Principal,
  events: EventInput[],
  lease = principal.kind === "harness" ? LEASE : undefined,
) {
  try {
    return checkEmit(principal, events, lease).authority;
  } catch (error) {
    const { reason, metadata } = error as { reason: string; metadata: { field: string } };
    return `${reason} ${metadata.field}`;
  }
}

const message = (...content: unknown[]) => input("user.message", { content });
const text = { type: "text", text: "hi" };

describe("who may append what", () => {
  test.each([
    [CLIENT, "user.message", "client"],
    [CLIENT, "users.created", "client"],
    [CLIENT, "acme.created", "client"],
    [ADMIN, "acme.created", "client"],
    [HARNESS, "agent.message", "brain"],
    [HARNESS, "span.model_request_end", "brain"],
    [HARNESS, "brain.inputs_consumed", "brain"],
    [HARNESS, "session.status_idle", "brain"],
    [WORKER, "user.tool_result", "client"],
    [WORK_ITEM, "user.tool_result", "client"],
    [TOKEN, "user.custom_tool_result", "client"],
  ] as const)("%o may append %s", (principal, type, authority) => {
    const payload =
      type === "user.message" ? { content: [text] } : { tool_use_id: "sevt_1", custom_tool_use_id: "sevt_1" };
    expect(outcome(principal, [input(type, payload)])).toBe(authority);
  });

  test.each([
    [CLIENT, "agent.message"],
    [CLIENT, "session.status_idle"],
    [CLIENT, "span.model_request_end"],
    [CLIENT, "brain.inputs_consumed"],
    [CLIENT, "hand.lost"],
    [CLIENT, "system.other"],
    [CLIENT, "user.mesage"],
    [ADMIN, "user.mesage"],
    [ADMIN, "agent.message"],
    [HARNESS, "user.message"],
    [HARNESS, "acme.created"],
    [HARNESS, "system.message"],
    [WORKER, "user.message"],
    [WORK_ITEM, "user.message"],
    [TOKEN, "acme.created"],
  ] as const)("%o may not append %s, and is told which event it was", (principal, type) => {
    const fine =
      principal.kind === "harness" ? input("agent.message") : input("user.tool_result", { tool_use_id: "x" });
    expect(outcome(principal, [fine, input(type)])).toBe("EVENT_TYPE_NOT_ALLOWED events[1].type");
  });

  test("a harness needs a lease, nobody else has one, and only its holder writes internal", () => {
    expect(() => checkEmit(HARNESS, [input("agent.message")], undefined)).toThrow(/lease/);
    expect(outcome(CLIENT, [message(text)], LEASE)).toBe("INVALID_FIELD lease");
    expect(outcome(CLIENT, [input("acme.a", {}, { internal: "{}" })])).toBe(
      "INVALID_FIELD events[0].internal",
    );
    expect(outcome(HARNESS, [input("agent.message", {}, { internal: "[1]" })])).toBe("brain");
  });
});

describe("bad input names the field", () => {
  test.each<[string, EventInput, string]>([
    ["text that is no JSON", input("acme.a", "{'a':1}"), "payload"],
    ["a list", input("acme.a", "[]"), "payload"],
    ["null", input("acme.a", "null"), "payload"],
    ["a raw control character", input("acme.a", '{"a":"\0"}'), "payload"],
    ["half of a surrogate pair", input("acme.a", '{"a":"\ud800"}'), "payload"],
    ["no content", input("user.message"), "payload.content"],
    ["content that is a string", input("user.message", { content: "hi" }), "payload.content"],
    ["empty content", message(), "payload.content"],
    ["an empty text", message(text, { type: "text", text: "" }), "payload.content[1].text"],
    ["a block that is no object", message("hi"), "payload.content[0]"],
    ["a block of an unknown type", message({ type: "constructor" }), "payload.content[0].type"],
    ["an image without a source", message({ type: "image" }), "payload.content[0].source"],
    [
      "an image whose data is no base64",
      message({ type: "image", source: { type: "base64", media_type: "image/png", data: "%%" } }),
      "payload.content[0].source.data",
    ],
    [
      "a document that is a stored file without a name",
      message({ type: "document", source: { type: "file" } }),
      "payload.content[0].source.file_id",
    ],
    [
      "an image in a system message",
      input("system.message", { content: [{ type: "image" }] }),
      "payload.content[0].type",
    ],
    [
      "a confirmation of nothing",
      input("user.tool_confirmation", { result: "allow" }),
      "payload.tool_use_id",
    ],
    [
      "a confirmation that says neither",
      input("user.tool_confirmation", { tool_use_id: "x", result: "maybe" }),
      "payload.result",
    ],
    [
      "a reason for what is allowed",
      input("user.tool_confirmation", { tool_use_id: "x", result: "allow", deny_message: "no" }),
      "payload.deny_message",
    ],
    [
      "a result of nothing",
      input("user.custom_tool_result", { content: [text] }),
      "payload.custom_tool_use_id",
    ],
    [
      "a result with the wrong field",
      input("user.tool_result", { custom_tool_use_id: "x" }),
      "payload.tool_use_id",
    ],
    [
      "a result with an is_error that is text",
      input("user.tool_result", { tool_use_id: "x", is_error: "no" }),
      "payload.is_error",
    ],
    ["an outcome without a rubric", input("user.define_outcome", { description: "d" }), "payload.rubric"],
    [
      "too many iterations",
      input("user.define_outcome", {
        description: "d",
        rubric: { type: "text", content: "c" },
        max_iterations: 21,
      }),
      "payload.max_iterations",
    ],
    ["a thread that is none", input("acme.a", {}, { threadId: "sesn_1" }), "thread_id"],
  ])("%s", (_, event, field) => {
    expect(outcome(CLIENT, [message(text), event])).toBe(`INVALID_FIELD events[1].${field}`);
  });

  test("two events of one request with the same id, or that answer the same call", () => {
    const twice = [input("acme.a", {}, { id: "sevt_a" }), input("acme.a", {}, { id: "sevt_a" })];
    expect(outcome(CLIENT, twice)).toBe("INVALID_FIELD events[1].id");
    const results = [
      input("user.tool_result", { tool_use_id: "x" }),
      input("user.tool_result", { tool_use_id: "x" }),
    ];
    expect(outcome(CLIENT, results)).toBe("INVALID_FIELD events[1].payload.tool_use_id");
    expect(outcome(HARNESS, [input("agent.tool_result")])).toBe(
      "INVALID_FIELD events[0].payload.tool_use_id",
    );
  });

  test("an event above 32 MiB", () => {
    const big = input("acme.a", `{"a":"${"x".repeat(32 * 1024 * 1024)}"}`);
    expect(outcome(CLIENT, [big])).toBe("MESSAGE_TOO_LARGE events[0]");
  });
});

test("texts are kept as they came, an empty payload is an empty object, events get ids", () => {
  const payload = ' {"2":1, "1":1.0,"1":"\\ud800\\u0000"}\r\n';
  const [kept, empty] = checkEvents([input("acme.a", payload), input("acme.a", "")], "client");
  expect(kept).toMatchObject({ payload, internal: undefined, id: expect.stringMatching(/^sevt_/) });
  expect(empty?.payload).toBe("{}");
});

test("a payload may be nested a hundred thousand deep", () => {
  const payload = `{"a":${"[".repeat(100_000)}${"]".repeat(100_000)}}`;
  expect(outcome(CLIENT, [input("acme.a", payload)])).toBe("client");
});

describe("who may see a session", () => {
  const place = { workspaceId: "wrkspc_1", environmentId: "env_1", slotEnvironmentIds: { android: "env_2" } };
  const sees = (principal: Principal) => {
    try {
      checkMaySee(principal, "sesn_1", place);
      return true;
    } catch (error) {
      expect(error).toMatchObject({ reason: "NOT_FOUND" });
      return false;
    }
  };
  test("only its workspace, its environments' workers and its own token", () => {
    expect(sees(CLIENT)).toBe(true);
    expect(sees(ADMIN)).toBe(true);
    expect(sees(HARNESS)).toBe(true);
    expect(sees(WORKER)).toBe(true);
    expect(sees({ ...WORKER, environmentId: "env_2" })).toBe(true);
    expect(sees(TOKEN)).toBe(true);
    expect(sees({ ...CLIENT, workspaceId: "wrkspc_2" })).toBe(false);
    expect(sees({ ...WORKER, environmentId: "env_3" })).toBe(false);
    expect(sees({ ...TOKEN, sessionId: "sesn_2" })).toBe(false);
    expect(sees(WORK_ITEM)).toBe(true);
    expect(sees({ ...WORK_ITEM, sessionId: "sesn_2" })).toBe(false);
    expect(sees({ kind: "anonymous" })).toBe(false);
  });
});
