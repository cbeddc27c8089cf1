/**
 * How many tokens the context windows of models hold, as their provider publishes it. Data alone; where the model API says
 * it itself, its word counts before this table.
 *
 * Source: https://platform.claude.com/docs/en/build-with-claude/context-windows and the pages of the single models there.
 */

/** When the table was last compared with its source. */
export const LIMITS_OF = "2026-10-16";

/** For models that are not here: the smallest window that any model of the list has. */
export const DEFAULT_WINDOW_TOKENS = 200_000;

const MILLION = 1_000_000;

/** By the model's id without the date of a snapshot. */
const WINDOW_TOKENS: Readonly<Record<string, number>> = {
  "claude-fable-5-1": MILLION,
  "claude-fable-5": MILLION,
  "claude-opus-5-5": MILLION,
  "claude-opus-5": MILLION,
  "claude-opus-4-8": MILLION,
  "claude-opus-4-7": MILLION,
  "claude-opus-4-6": MILLION,
  "claude-opus-4-5": 200_000,
  "claude-sonnet-5-5": MILLION,
  "claude-sonnet-5": MILLION,
  "claude-sonnet-4-6": MILLION,
  "claude-sonnet-4-5": 200_000,
  "claude-haiku-5-5": MILLION,
  "claude-haiku-4-5": 200_000,
};

/** What the table says; undefined for a model that it does not know. */
export function knownWindowTokens(model: string): number | undefined {
  const name = model.replace(/-20\d{6}$/, "");
  return Object.hasOwn(WINDOW_TOKENS, name) ? WINDOW_TOKENS[name] : undefined;
}
