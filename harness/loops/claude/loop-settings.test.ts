import { describe, expect, it } from "vitest";
import { claudeSettings } from "./loop-settings.ts";

const context = (value: object) => JSON.stringify({ context: value });

describe("settings of the claude loop", () => {
  it("have defaults for all, also where there are none", () => {
    for (const text of ["", "{}", context({})]) {
      expect(claudeSettings(text)).toEqual({
        windowTokens: undefined,
        trim: { atPercent: 50, keepPercent: 20, freePercent: 15, keepChars: 400 },
        compact: { atPercent: 80, keepPercent: 10, instructions: "" },
      });
    }
  });

  it("turn parts off, and let shares follow the one that is set", () => {
    expect(claudeSettings(context({ trim_results: false, compact: false, window_tokens: 5_000 }))).toEqual({
      windowTokens: 5_000,
      trim: undefined,
      compact: undefined,
    });
    const { trim, compact } = claudeSettings(
      context({ trim_results: { at_percent: 10 }, compact: { at_percent: 12 } }),
    );
    expect(trim).toMatchObject({ atPercent: 10, keepPercent: 4, freePercent: 3 });
    expect(compact).toMatchObject({ atPercent: 12, keepPercent: 6 });
  });

  it.each([
    ["[]", "loop_settings is not an object"],
    ["{", "loop_settings is not JSON"],
    [`{"contexts":{}}`, "loop_settings.contexts is not a setting"],
    [context({ windows: 1 }), "loop_settings.context.windows is not a setting"],
    [
      context({ window_tokens: 10 }),
      "loop_settings.context.window_tokens must be a whole number from 1000 to",
    ],
    [context({ compact: true }), "loop_settings.context.compact must be an object"],
    [context({ compact: { at_percent: "80" } }), "compact.at_percent must be a whole number from 10 to 95"],
    [context({ compact: { keep_percent: 45 } }), "compact.keep_percent is more than half of at_percent"],
    [context({ compact: { instructions: 1 } }), "compact.instructions must be a text of at most 10000"],
    [context({ trim_results: { at_percent: 20, keep_percent: 20 } }), "nothing would ever be trimmed"],
  ])("that cannot be used are refused with their path: %s", (text, problem) => {
    expect(() => claudeSettings(text)).toThrow(problem);
  });
});
