import { describe, expect, it } from "vitest";
import { type ShortEvent, shortLog } from "../../../test/kit/short-log.ts";
import { buildHistory } from "./history.ts";

const START: ShortEvent = ["span.model_request_start"];
const END: ShortEvent = [
  "span.model_request_end",
  { is_error: false, model_usage: { input_tokens: 90, output_tokens: 10 } },
];
const ASKED: ShortEvent = [
  "span.model_request_end",
  { is_error: false },
  { v: 1, stop: "context", calls: 0 },
];
const said = (text: string, type = "user.message"): ShortEvent => [
  type,
  { content: [{ type: "text", text }] },
];
const consumed = (...event_ids: string[]): ShortEvent => ["brain.inputs_consumed", { event_ids, turn: 1 }];
const call = (id: string): ShortEvent => [
  "agent.tool_use",
  { name: "bash" },
  { v: 1, blocks: [{ type: "tool_use", id, name: "bash", input_text: "{}" }] },
];
const result = (tool_use_id: string, text: string): ShortEvent => [
  "agent.tool_result",
  { tool_use_id, content: [{ type: "text", text }], is_error: false },
];
const changed = (internal: object): ShortEvent => ["brain.context_changed", {}, { v: 1, ...internal }];
const compact = (keep_from: number, summary: string) => changed({ compact: { keep_from, summary } });

const history = (...events: ShortEvent[]) => buildHistory(shortLog(...events), () => "bash");
const texts = (...events: ShortEvent[]) =>
  history(...events).messages.map(({ role, blocks }) => `${role} ${blocks.join(" ")}`);

/** Positions: 3 begins the first request, 7 the second, 11 the third. */
const TALK: ShortEvent[] = [
  said("do it"),
  consumed("e1"),
  START,
  call("t1"),
  END,
  result("e4", "first ".repeat(100)),
  START,
  call("t2"),
  END,
  result("e8", "second ".repeat(100)),
  START,
];

describe("a decision to trim", () => {
  const trim = (before_position: number, keep_chars: number) =>
    changed({ trim: { before_position, keep_chars } });

  it("leaves the beginning of the results of older calls, and says where the rest is", () => {
    const [, , first, , second] = texts(...TALK, trim(8, 10));
    expect(first).toContain(`"tool_use_id":"t1","content":[{"type":"text","text":"first firs\\n[The rest`);
    expect(first).toContain("It had 600 characters and is event 6 of the session's log.");
    expect(second).toContain("second second second");
  });

  it("marks where the next one will begin, changes nothing twice, and nothing that is short", () => {
    const events = [...TALK, trim(8, 10)];
    const { settledEnd, messages } = history(...events);
    expect(settledEnd?.message).toBe(messages[2]);
    expect(texts(...events, trim(8, 5))).toEqual(texts(...events));
    const short = TALK.map(
      (event): ShortEvent => (event[0] === "agent.tool_result" ? result("e4", "ok") : event),
    );
    expect(texts(...short, trim(8, 0))[2]).toContain(`"text":"ok"`);
  });
});

describe("a summary", () => {
  it("stands in place of all before the answer that it keeps", () => {
    const kept = texts(...TALK, compact(7, "It was begun."), ASKED, START);
    expect(kept).toHaveLength(3);
    expect(kept[0]).toContain("It was begun.");
    expect(kept[0]).toContain("do it");
    expect(kept[1]).toContain("t2");
    expect(kept[2]).toContain("second second");
    expect(kept.join()).not.toContain("first first");
  });

  it("of which the log does not have the place keeps nothing, and leaves what was said last, also a second time", () => {
    const log = [...TALK, compact(999, "One."), ASKED, START, compact(0, "Two."), ASKED, START];
    const [only, ...none] = texts(...log);
    expect(none).toEqual([]);
    expect(only).toContain("Two.");
    expect(only).not.toContain("One.");
    expect(only).toContain("do it");
  });

  it("is followed by what the session is told next, and no measure or mark is left of before", () => {
    const log = [...TALK, compact(0, "All."), ASKED, said("more"), consumed("e14"), START];
    const { messages, answeredEnd, results, starts, trouble } = history(...log);
    expect(messages).toHaveLength(1);
    expect(messages[0]!.blocks.at(-1)).toContain("more");
    expect(answeredEnd).toBeUndefined();
    expect(results).toEqual([]);
    expect(starts.map(({ message }) => message)).toEqual([messages[0]]);
    expect(trouble).toMatchObject({ summaries: 1, tooLong: 0, noSummary: 0 });
  });

  it("of a version or a loop that is not known changes nothing", () => {
    expect(texts(...TALK, changed({ v: 2, compact: { keep_from: 0, summary: "x" } }))).toEqual(
      texts(...TALK),
    );
    expect(texts(...TALK, ["brain.context_changed", { change: "compacted" }])).toEqual(texts(...TALK));
  });

  it("does not take what a thread reports for the user's words", () => {
    const report: ShortEvent = [
      "agent.thread_message_received",
      { content: [{ type: "text", text: "report" }] },
    ];
    const log = [...TALK.slice(0, 10), report, consumed("e11"), START, compact(0, "All."), ASKED, START];
    const [only] = texts(...log);
    expect(only).toContain("do it");
    expect(only).not.toContain("report");
  });
});
