import { describe, expect, it } from "vitest";
import { systemClock } from "../kit/clock.ts";
import type { Event } from "../proto/gen/tendon/v1/event_pb.js";
import { type ShortEvent, shortCall, shortLog, shortResult } from "../test/kit/short-log.ts";
import { HeldHistory } from "./held-history.ts";
import { HistoryRoom } from "./history-room.ts";
import { bytesOf } from "./history-room-rules.ts";
import { hollowEvent } from "./hollow-event.ts";
import { spentAttachments } from "./loops/claude/attachments.ts";
import { buildHistory } from "./loops/claude/history.ts";

const MIB = 1024 * 1024;
const START: ShortEvent = ["span.model_request_start"];
const usage = { input_tokens: 90, output_tokens: 10 };
const END: ShortEvent = ["span.model_request_end", { is_error: false, model_usage: usage }, { stop: "done" }];
const UNMEASURED: ShortEvent = ["span.model_request_end", { is_error: false }, { stop: "done" }];
const file = (type: "document" | "image", title: string) => ({
  type,
  source: { type: "base64", media_type: "application/pdf", data: title.repeat(12_000) },
  title,
});
const says = (...content: object[]): ShortEvent => ["user.message", { content }];
const told = (...ids: string[]): ShortEvent => ["brain.inputs_consumed", { event_ids: ids, turn: 1 }];
const answer: ShortEvent = ["agent.message", {}, { v: 1, blocks: [{ type: "text", text: "read" }] }];
const leftOut = (of: string, from: number, to: number): ShortEvent => [
  "brain.context_changed",
  { change: `${of}s_left_out` },
  { v: 1, attachments: { of, from, to, why: "room" } },
];
const trimmed = (before_position: number): ShortEvent => [
  "brain.context_changed",
  { change: "results_trimmed" },
  { v: 1, trim: { before_position, keep_chars: 20 } },
];
const summed = (keep_from: number): ShortEvent => [
  "brain.context_changed",
  { change: "compacted" },
  { v: 1, compact: { keep_from, made_by: "model", summary: "They read." } },
];

/** A user's document and image, and what two calls brought. */
const READ: readonly ShortEvent[] = [
  says({ type: "text", text: "Compare." }, file("document", "mine.pdf"), file("image", "mine.png")),
  told("e1"),
  START,
  shortCall("t1"),
  END,
  shortResult("e4", { type: "text", text: "one" }, file("document", "one.pdf")),
  START,
  shortCall("t2"),
  END,
  shortResult("e8", { type: "text", text: "two" }, file("document", "two.pdf"), file("image", "two.png")),
];
const GOES_ON: readonly ShortEvent[] = [START, answer, END];

const build = (events: readonly Event[]) => {
  const { messages, weight, measured, results, starts, trouble } = buildHistory(events, () => "web_fetch");
  const positions = [results, starts].map((all) => all.map(({ position }) => position));
  return JSON.stringify({ messages, weight: Math.round(weight), measured, positions, trouble });
};

/** What is held of the log by its end. At each place a request is made as from the whole log. */
function held(log: readonly ShortEvent[]): readonly Event[] {
  const room = new HistoryRoom(100 * MIB, systemClock);
  const share = room.enter("s", () => {});
  const history = new HeldHistory(share, (events) => spentAttachments(buildHistory(events, () => "")));
  const whole = shortLog(...log);
  for (const [i, event] of whole.entries()) {
    history.add(event);
    expect(build(history.events) === build(whole.slice(0, i + 1)), `up to ${i + 1}`).toBe(true);
  }
  share.close();
  return history.events;
}

/** Events that have their files no more. */
const hollow = (log: readonly ShortEvent[]) => {
  const whole = shortLog(...log);
  return held(log).flatMap((event, i) => (bytesOf(event) < bytesOf(whole[i]!) ? [event.id] : []));
};

describe("what no request shows any more is let go of, and requests stay as they are", () => {
  it("where documents and images were left out, once all of an event's are", () => {
    expect(hollow([...READ, leftOut("document", 0, 2), ...GOES_ON])).toEqual(["e6"]);
    expect(hollow([...READ, leftOut("document", 0, 3), leftOut("image", 0, 1), ...GOES_ON])).toEqual([
      "e1",
      "e6",
    ]);
    const later = [leftOut("image", 0, 1), ...GOES_ON];
    expect(hollow([...READ, leftOut("document", 0, 3), ...GOES_ON, ...later])).toEqual(["e1", "e6"]);
  });

  it("where results were trimmed", () => {
    const more: ShortEvent[] = [
      START,
      shortCall("t3"),
      END,
      shortResult("e12", { type: "text", text: "three" }),
    ];
    expect(hollow([...READ, ...more, trimmed(9), ...GOES_ON, trimmed(13), ...GOES_ON])).toEqual([
      "e6",
      "e10",
    ]);
  });

  it("where a summary took their place, and the user's words stay", () => {
    const whole = hollow([
      ...READ,
      START,
      answer,
      END,
      summed(0),
      ...GOES_ON,
      leftOut("image", 0, 1),
      ...GOES_ON,
    ]);
    expect(whole).toEqual(["e1", "e6", "e10"]);
    expect(hollow([...READ, START, answer, END, summed(7), ...GOES_ON])).toEqual(["e1", "e6"]);
  });

  it("but not before an answer has measured the request anew, nor for what waits to be told", () => {
    const changed = [...READ, leftOut("document", 0, 2), START, answer];
    expect(hollow(changed)).toEqual([]);
    expect(hollow([...changed, UNMEASURED])).toEqual([]);
    expect(hollow([...changed, UNMEASURED, ...GOES_ON])).toEqual(["e6"]);
    const queued = [...READ, leftOut("document", 0, 3), says(file("document", "new.pdf")), ...GOES_ON];
    expect(hollow([...queued, told("e12"), ...GOES_ON])).toEqual(["e6"]);
  });
});

it("an event without its files keeps all else, and one without any is the same", () => {
  const [whole, plain] = shortLog(
    says({ type: "text", text: "a" }, file("image", "b")),
    says({ type: "text", text: "a" }),
  );
  const { content } = JSON.parse(hollowEvent(whole!).payload);
  expect(content[0]).toEqual({ type: "text", text: "a" });
  expect(content[1]).toMatchObject({ type: "image", title: "b", source: { data: "b".repeat(4_096) } });
  expect(hollowEvent(plain!)).toBe(plain);
});
