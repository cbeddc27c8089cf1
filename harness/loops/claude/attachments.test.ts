import { describe, expect, it } from "vitest";
import { type ShortEvent, shortCall, shortLog, shortResult } from "../../../test/kit/short-log.ts";
import { changeOf } from "./context-decision.ts";
import { contextSize, contextStep } from "./context-policy.ts";
import { buildHistory } from "./history.ts";
import { claudeSettings } from "./loop-settings.ts";

const START: ShortEvent = ["span.model_request_start"];
const END: ShortEvent = [
  "span.model_request_end",
  { is_error: false, model_usage: { input_tokens: 90, output_tokens: 10 } },
];
const UNREADABLE = { kind: "attachments_refused", of: "document", why: "unreadable" };
const refused = (note: object): ShortEvent => [
  "span.model_request_end",
  { is_error: true },
  { failure: { note } },
];
const pdf = (title: string, data = "AAAA") => ({
  type: "document",
  source: { type: "base64", media_type: "application/pdf", data },
  title,
});
const fetched = (title: string, data?: string) => [
  { type: "text", text: `This is ${title}.` },
  pdf(title, data),
];

/** A user's document and one of a tool, which the model has read; then one that it has not. */
const TALK: ShortEvent[] = [
  ["user.message", { content: [pdf("mine.pdf"), { type: "text", text: "Compare." }] }],
  ["brain.inputs_consumed", { event_ids: ["e1"], turn: 1 }],
  START,
  shortCall("t1"),
  END,
  shortResult("e4", ...fetched("one.pdf")),
  START,
  shortCall("t2"),
  END,
  shortResult("e8", ...fetched("two.pdf")),
  START,
];

const history = (events: readonly ShortEvent[]) => buildHistory(shortLog(...events), () => "web_fetch");
const settings = claudeSettings("");
const stepOf = (events: readonly ShortEvent[], windowTokens = 200_000) => {
  const built = history(events);
  return contextStep(built, contextSize(built, 0, windowTokens, 1_000), settings);
};

/** Titles that a request after the log's end holds, once the loop has nothing more to change. */
function titlesAfter(events: ShortEvent[]): string[] {
  for (;;) {
    const step = stepOf(events);
    if (step?.kind !== "attachments") break;
    const { kind, payload, internal } = changeOf(step, 0);
    expect(kind).toBe("documents_left_out");
    events.push(["brain.context_changed", payload, internal]);
  }
  const said = history(events)
    .messages.flatMap(({ blocks }) => blocks)
    .join("");
  return [...said.matchAll(/"title":"(\w+)\.pdf"/g)].map(([, title]) => title!);
}

describe("documents of a request that the model API refuses", () => {
  it("go where they are new and cannot be read, and a line says so", () => {
    const events = [...TALK, refused(UNREADABLE)];
    expect(titlesAfter(events)).toEqual(["mine", "one"]);
    const said = history(events).messages.at(-1)!.blocks.join("");
    expect(said).toContain("This is two.pdf.");
    expect(said).toContain("[A document was left out here: the model API cannot read it.]");
    // And once more, when it was another one after all.
    events.push(START, refused(UNREADABLE));
    expect(titlesAfter(events)).toEqual([]);
    events.push(START, refused(UNREADABLE));
    expect(stepOf(events)).toBeUndefined();
  });

  it.each([
    ["they have too many pages", { kind: "attachments_refused", of: "document", why: "room" }],
    ["the request is too long", { kind: "prompt_too_long" }],
  ])("go where %s: those that were read first, then the new ones", (_, note) => {
    const events = [...TALK, refused(note)];
    expect(titlesAfter(events)).toEqual(["two"]);
    events.push(START, refused(note));
    expect(titlesAfter(events)).toEqual([]);
  });

  it("stay once the request was answered", () => {
    const events = [...TALK, END];
    expect(titlesAfter(events)).toEqual(["mine", "one", "two"]);
  });
});

describe("an image that the model API does not take", () => {
  const image = (data: string) => ({
    type: "image",
    source: { type: "base64", media_type: "image/png", data },
  });
  const shot = (id: string, data: string) => shortResult(id, { type: "text", text: "shot" }, image(data));
  const talk: readonly ShortEvent[] = [
    ["user.message", { content: [image("mine"), pdf("kept.pdf")] }],
    ["brain.inputs_consumed", { event_ids: ["e1"], turn: 1 }],
    START,
    shortCall("t1"),
    END,
    shot("e4", "shot"),
    START,
  ];
  const imagesAfter = (events: ShortEvent[]): string[] => {
    for (let step = stepOf(events); step?.kind === "attachments"; step = stepOf(events)) {
      const { kind, payload, internal } = changeOf(step, 0);
      expect([kind, payload]).toMatchObject(["images_left_out", { images: 1 }]);
      events.push(["brain.context_changed", payload, internal]);
    }
    const said = history(events)
      .messages.flatMap(({ blocks }) => blocks)
      .join("");
    expect(said).toContain("kept.pdf");
    return [...said.matchAll(/"image\/png","data":"(\w+)"/g)].map(([, data]) => data!);
  };

  it("is left out where it is new, in a result and by itself; documents and what was read stay", () => {
    const unreadable = refused({ kind: "attachments_refused", of: "image", why: "unreadable" });
    const events = [...talk, unreadable];
    expect(imagesAfter(events)).toEqual(["mine"]);
    expect(history(events).messages.at(-1)!.blocks.join("")).toContain(
      "[An image was left out here: the model API cannot read it.]",
    );
    events.push(START, unreadable);
    expect(imagesAfter(events)).toEqual([]);
    expect(stepOf([...events, START, unreadable])).toBeUndefined();
  });

  it("is one that was read before, where there are too many", () => {
    expect(
      imagesAfter([...talk, refused({ kind: "attachments_refused", of: "image", why: "room" })]),
    ).toEqual(["shot"]);
  });
});

it("a talk is not summarised for a document that no model has read yet; once it was read it is trimmed like any result", () => {
  const large = [...TALK.slice(0, 9), shortResult("e8", ...fetched("two.pdf", "A".repeat(2_000_000))), START];
  expect(stepOf(large, 20_000)).toBeUndefined();
  const later = [...large, END, shortCall("t3"), shortResult("e13"), START];
  expect(stepOf(later, 20_000)).toMatchObject({ kind: "trim", beforePosition: 9 });
});
