import { describe, expect, it } from "vitest";
import { FakeClock } from "../../../test/kit/fake-clock.ts";
import { DEFAULT_WINDOW_TOKENS, knownWindowTokens } from "../../model-limits.ts";
import { ModelWindows } from "./model-windows.ts";

const LONG = 50_000;

describe("windows of models", () => {
  it("are known from a table, snapshots by their model, and others are taken for small", () => {
    expect(knownWindowTokens("claude-opus-5-5")).toBe(1_000_000);
    expect(knownWindowTokens("claude-haiku-4-5-20251001")).toBe(200_000);
    expect(knownWindowTokens("claude-opus-5-55")).toBeUndefined();
    expect(knownWindowTokens("constructor")).toBeUndefined();
    expect(ModelWindows.assumed("another")).toBe(DEFAULT_WINDOW_TOKENS);
  });

  it("are what the model API says, asked once a day and only for long talks", async () => {
    const clock = new FakeClock();
    let asked = 0;
    const windows = new ModelWindows({ windowTokens: async () => 30_000 + asked++ }, clock);
    expect(await windows.of("claude-opus-5-5", 1_000)).toBe(1_000_000);
    expect(asked).toBe(0);
    expect(await windows.of("claude-opus-5-5", LONG)).toBe(30_000);
    expect(await windows.of("claude-opus-5-5", LONG)).toBe(30_000);
    expect(asked).toBe(1);
    await clock.advance(25 * 60 * 60_000);
    expect(await windows.of("claude-opus-5-5", LONG)).toBe(30_001);
  });

  it("are those of the table when the model API cannot say it, and it is asked again after a while", async () => {
    const clock = new FakeClock();
    let asked = 0;
    const windows = new ModelWindows(
      {
        windowTokens: async () => {
          asked += 1;
          throw new Error("not found");
        },
      },
      clock,
    );
    expect(await windows.of("claude-haiku-4-5", LONG)).toBe(200_000);
    expect(await windows.of("claude-haiku-4-5", LONG)).toBe(200_000);
    expect(asked).toBe(1);
    await clock.advance(11 * 60_000);
    expect(await windows.of("claude-haiku-4-5", LONG)).toBe(200_000);
    expect(asked).toBe(2);
  });

  it("keep nobody waiting for longer than 5 s", async () => {
    const clock = new FakeClock();
    const windows = new ModelWindows({ windowTokens: () => new Promise(() => {}) }, clock);
    const found = windows.of("claude-haiku-4-5", LONG);
    await clock.advance(5_001);
    expect(await found).toBe(200_000);
  });
});
