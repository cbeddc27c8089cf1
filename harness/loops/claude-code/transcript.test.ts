import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { type Event, EventSchema } from "../../../proto/gen/tendon/v1/event_pb.js";
import { continuation, type Entry, lean, readLog, uuidOf } from "./transcript.ts";

const now = new Date("2026-01-02T03:04:05Z");
const says = (text: string) => ({ content: [{ type: "text", text }] });

/** A log, one event for each [type, payload, internal]. */
function log(...rows: [string, object, object?][]): Event[] {
  return rows.map(([type, payload, internal], i) =>
    create(EventSchema, {
      id: `sevt_${i + 1}`,
      position: BigInt(i + 1),
      type,
      payload: JSON.stringify(payload),
      internal: internal === undefined ? "" : JSON.stringify(internal),
    }),
  );
}
const call = (id: string): [string, object, object] => [
  "agent.tool_use",
  { name: "bash", input: {} },
  { v: 1, blocks: [{ type: "tool_use", id, name: "bash", input_text: "{}" }] },
];
const end = (entries: Entry[], by = "claude-code"): [string, object, object] => [
  "span.model_request_end",
  { is_error: false },
  { v: 1, kept: { by, value: { v: 1, entries } } },
];
const start: [string, object] = ["span.model_request_start", {}];
const line = (type: string, uuid: string, content: unknown, more: object = {}): Entry => ({
  type,
  uuid,
  version: "2.1",
  isSidechain: false,
  message: { role: type, content },
  ...more,
});
const callLine = (id: string) =>
  line("assistant", `uuid ${id}`, [{ type: "tool_use", id, name: "x", input: {} }]);

const TURN = log(
  ["user.message", says("hi")],
  ["brain.inputs_consumed", { event_ids: ["sevt_1"], turn: 1 }],
  start,
  call("toolu_a"),
  call("toolu_b"),
  end([line("user", "uuid hi", [{ type: "text", text: "hi" }]), callLine("toolu_a"), callLine("toolu_b")]),
  ["agent.tool_result", { tool_use_id: "sevt_4", content: [{ type: "text", text: "A" }] }],
  ["agent.tool_result", { tool_use_id: "sevt_5", content: [{ type: "text", text: "B" }], is_error: true }],
);

describe("the transcript in the log", () => {
  it("is not there before the first answer: what was said is told, also after requests that failed", () => {
    const reading = readLog(
      log(
        ["user.message", says("hi")],
        ["brain.inputs_consumed", { event_ids: ["sevt_1"] }],
        start,
        ["span.model_request_end", { is_error: true }],
        ["user.message", says("queued")],
      ),
    );
    expect({ ...reading, kept: reading.kept() }).toEqual({
      kept: [],
      results: new Map(),
      said: [{ eventId: "sevt_1", content: says("hi").content }],
    });
  });

  it("comes back as the SDK wrote it, with the results of the calls that it was waiting for", () => {
    const reading = readLog(TURN);
    expect(reading.kept().map(({ uuid }) => uuid)).toEqual(["uuid hi", "uuid toolu_a", "uuid toolu_b"]);
    expect([...reading.results.keys()]).toEqual(["toolu_a", "toolu_b"]);
    expect(reading.said).toEqual([]);
  });

  it("holds no results of its own: those of the log stand in their place", () => {
    const result = line(
      "user",
      "uuid r",
      [{ type: "tool_result", tool_use_id: "toolu_a", content: "secret" }],
      {
        toolUseResult: "secret",
      },
    );
    const kept = lean([result, line("user", "u", [{ type: "text", text: "x" }])]);
    expect(JSON.stringify(kept)).not.toContain("secret");
    expect(kept[1]).toEqual(line("user", "u", [{ type: "text", text: "x" }]));
    const later = [...TURN, ...log(start, end(kept)).map((event, i) => ({ ...event, id: `sevt_9${i}` }))];
    const reading = readLog(later);
    expect(reading.kept().find(({ uuid }) => uuid === "uuid r")?.message).toEqual({
      role: "user",
      content: [{ type: "tool_result", tool_use_id: "toolu_a", content: [{ type: "text", text: "A" }] }],
    });
    expect(reading.results.size).toBe(0);
  });

  it("leaves out what other loops kept", () => {
    expect(readLog(log(start, end([callLine("toolu_a")], "external:x"))).kept()).toEqual([]);
  });
});

describe("what is put behind it", () => {
  it("are results below the calls that they answer, then what was said, each time under the same ids", () => {
    const events = [
      ...TURN,
      ...log(
        ["user.message", says("and?")],
        ["brain.inputs_consumed", { event_ids: ["sevt_91"] }],
        ["hand.lost", { slot: "", detail: "it died" }],
        [
          "agent.thread_message_received",
          { ...says("from below"), from_session_thread_id: "sthr_1", from_agent_name: "B" },
        ],
        ["brain.inputs_consumed", { event_ids: ["sevt_94"] }],
      ).map((event, i) => create(EventSchema, { ...event, id: `sevt_9${i + 1}` })),
    ];
    const entries = continuation(readLog(events), "session", now);
    expect(entries.map(({ parentUuid }) => parentUuid)).toEqual([
      "uuid toolu_a",
      "uuid toolu_b",
      entries[1]!.uuid,
      entries[2]!.uuid,
      entries[3]!.uuid,
    ]);
    expect(entries.map(({ message }) => (message as { content: unknown }).content)).toEqual([
      [{ type: "tool_result", tool_use_id: "toolu_a", content: [{ type: "text", text: "A" }] }],
      [
        {
          type: "tool_result",
          tool_use_id: "toolu_b",
          content: [{ type: "text", text: "B" }],
          is_error: true,
        },
      ],
      [{ type: "text", text: "and?" }],
      [
        {
          type: "text",
          text: expect.stringContaining("was lost (it died): its files and processes are gone"),
        },
      ],
      [
        { type: "text", text: '[Message from thread sthr_1, agent "B":]' },
        { type: "text", text: "from below" },
      ],
    ]);
    expect(continuation(readLog(events), "session", new Date()).map(({ uuid }) => uuid)).toEqual(
      entries.map(({ uuid }) => uuid),
    );
  });

  it("has ids of the form that the SDK wants", () => {
    for (const text of ["", "a", "b", "c"]) {
      expect(uuidOf(text)).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    }
  });
});
