import { describe, expect, it } from "vitest";
import { type ContextSize, contextSize, contextStep } from "./context-policy.ts";
import type { History } from "./history.ts";
import { claudeSettings } from "./loop-settings.ts";
import { type HistoryMessage, messageWeight } from "./message-list.ts";
import type { PlacedResult } from "./tool-results.ts";

const WINDOW = 100_000;
const text = (bytes: number) => `{"type":"text","text":"${"x".repeat(Math.max(0, bytes - 25))}"}`;
const NO_TROUBLE = { tooLong: 0, noSummary: 0, summaries: 0, attachments: undefined, limitTokens: undefined };

/** Rounds of a call and its result, of so many bytes each; the newest result has not been seen yet. */
function rounds(sizes: readonly number[], more: Partial<History> = {}): History {
  const messages: HistoryMessage[] = [{ role: "user", blocks: [text(100)] }];
  const results: PlacedResult[] = [];
  const starts = [{ position: 1, message: messages[0]! }];
  for (const [i, size] of sizes.entries()) {
    const message: HistoryMessage = { role: "user", blocks: [text(size)] };
    messages.push({ role: "assistant", blocks: [text(50)] }, message);
    const position = (i + 1) * 10;
    results.push({
      place: { message, block: 0 },
      position,
      modelId: `t${i}`,
      event: undefined,
      isTrimmed: false,
    });
    starts.push({ position: position + 1, message });
  }
  const weight = messages.reduce((sum, message) => sum + messageWeight(message), 0);
  return {
    messages,
    weight,
    answeredEnd: undefined,
    settledEnd: undefined,
    results,
    starts,
    measured: undefined,
    trouble: NO_TROUBLE,
    placed: [],
    isMeasuredBefore: false,
    ...more,
  };
}

const sizeOf = (history: History): ContextSize => contextSize(history, 0, WINDOW, 10_000);
const step = (history: History, settings = "") =>
  contextStep(history, sizeOf(history), claudeSettings(settings));

describe("the size of a request", () => {
  it("goes by what the model reported for what it has seen", () => {
    const history = rounds([30_000]);
    const unmeasured = sizeOf(history).tokens;
    expect(unmeasured).toBeCloseTo(history.weight / 3, 0);
    const measured = { tokens: 5_000, weight: 20_000 };
    expect(sizeOf({ ...history, measured }).tokens).toBeCloseTo(history.weight / 4, 0);
    // Tools and system prompt were part of what was measured.
    expect(contextSize({ ...history, measured }, 5_000, WINDOW, 1).tokensPerByte).toBe(0.2);
  });

  it("does not believe reports that no text has", () => {
    const history = rounds([30_000], { measured: { tokens: 1, weight: 20_000 } });
    expect(sizeOf(history).tokensPerByte).toBe(0.1);
    expect(sizeOf({ ...history, measured: { tokens: 10 ** 9, weight: 1 } }).tokensPerByte).toBe(0.7);
  });

  it("is held against what the model API named as its limit, where that is less", () => {
    const trouble = { ...NO_TROUBLE, limitTokens: 7_000 };
    expect(sizeOf(rounds([10], { trouble })).windowTokens).toBe(7_000);
  });
});

describe("trimming", () => {
  it("begins at half of the window, deals with all results beyond the newest fifth, and with none that is not seen yet", () => {
    expect(step(rounds(Array(14).fill(10_000)))).toBeUndefined();
    // 16 results of 3,333 tokens: 53,000 in all; of those that were seen six stay.
    expect(step(rounds(Array(16).fill(10_000)))).toEqual({
      kind: "trim",
      beforePosition: 91,
      keepChars: 400,
    });
    const oneUnseen = rounds([...Array(3).fill(1_000), 160_000]);
    expect(step(oneUnseen)).toBeUndefined();
  });

  it("waits until much becomes free", () => {
    const trimmed = rounds(Array(16).fill(10_000));
    for (const result of trimmed.results.slice(0, 5)) (result as { isTrimmed: boolean }).isTrimmed = true;
    // The four that are left would free 12,000 tokens.
    expect(step(trimmed)).toBeUndefined();
    expect(step(trimmed, `{"context":{"trim_results":{"free_percent":10}}}`)).toMatchObject({ kind: "trim" });
  });
});

describe("summaries", () => {
  it("are asked for when trimming is not enough, at the end of the talk itself, and leave the newest answers", () => {
    const history = rounds(Array(25).fill(10_000));
    for (const result of history.results) (result as { isTrimmed: boolean }).isTrimmed = true;
    expect(step(history)).toEqual({
      kind: "summarise",
      // Two results of 3,333 tokens are within a tenth of the window.
      keepFrom: 231,
      wholeTalk: true,
      maxBytes: 150_000,
    });
  });

  it("are asked for over ever shorter transcripts when a request was too long or gave none, and then an extract is made", () => {
    const with_ = (trouble: Partial<History["trouble"]>) =>
      step(rounds(Array(40).fill(10_000), { trouble: { ...NO_TROUBLE, ...trouble } }));
    expect(with_({ tooLong: 1 })).toMatchObject({ kind: "summarise", wholeTalk: false, maxBytes: 150_000 });
    expect(with_({ tooLong: 2 })).toMatchObject({ kind: "summarise", maxBytes: 75_000 });
    expect(with_({ tooLong: 2, noSummary: 1 })).toMatchObject({ kind: "summarise", maxBytes: 30_000 });
    expect(with_({ tooLong: 4 })).toMatchObject({ kind: "extract" });
    expect(with_({ noSummary: 3 })).toMatchObject({ kind: "extract" });
  });

  it("are asked for over ever less of the talk also where the window is said to be far larger than it is", () => {
    const settings = claudeSettings(`{"context":{"window_tokens":100000000}}`);
    const share = (tooLong: number) => {
      const history = rounds(Array(40).fill(10_000), { trouble: { ...NO_TROUBLE, tooLong } });
      const next = contextStep(history, contextSize(history, 0, 100_000_000, 10_000), settings);
      return next !== undefined && "maxBytes" in next ? next.maxBytes / history.weight : undefined;
    };
    expect(share(2)).toBeCloseTo(0.25, 2);
    expect(share(3)).toBeCloseTo(0.1, 2);
    expect(share(4)).toBeCloseTo(0.05, 2);
  });

  it("keep nothing but themselves the second time in a row", () => {
    const trouble = { ...NO_TROUBLE, summaries: 1 };
    expect(
      step(rounds(Array(25).fill(10_000), { trouble }), `{"context":{"trim_results":false}}`),
    ).toMatchObject({
      keepFrom: 0,
      wholeTalk: false,
    });
  });

  it("are not asked for where tools and system prompt fill the window", () => {
    const history = rounds([100]);
    const size = contextSize(history, 290_000, WINDOW, 10_000);
    expect(contextStep(history, size, claudeSettings(""))).toBeUndefined();
  });
});
