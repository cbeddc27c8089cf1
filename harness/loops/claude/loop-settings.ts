/**
 * What an agent's `loop_settings` say to this loop (pure). Everything has a default; what is not known, or out of its
 * bounds, is refused with its path.
 *
 *   {"context": {"window_tokens": 200000,
 *                "trim_results": {"at_percent": 50, "keep_percent": 20, "free_percent": 15, "keep_chars": 400},
 *                "compact": {"at_percent": 80, "keep_percent": 10, "instructions": "…"}}}
 *
 * Percentages are of the context window. `false` in place of an object turns that part off.
 */
import { isObject, type Json } from "../../event-payload.ts";

export interface TrimSettings {
  /** Old results are trimmed when the next request would fill the window this far … */
  readonly atPercent: number;
  /** … the newest ones stay, up to this share … */
  readonly keepPercent: number;
  /** … and only when so much becomes free, so that the cached prefix is seldom given up. */
  readonly freePercent: number;
  /** Characters that stay of a trimmed result. */
  readonly keepChars: number;
}

export interface CompactSettings {
  readonly atPercent: number;
  /** The newest answers and results stay as they are, up to this share of the window. */
  readonly keepPercent: number;
  /** Said to the model with the request for a summary. */
  readonly instructions: string;
}

export interface ClaudeSettings {
  /** Undefined: what the model API says, or a table. */
  readonly windowTokens: number | undefined;
  /** Undefined: off. */
  readonly trim: TrimSettings | undefined;
  readonly compact: CompactSettings | undefined;
}

export class SettingsInvalid extends Error {
  override readonly name = "SettingsInvalid";
}

const MIN_WINDOW = 1_000;
const MAX_WINDOW = 100_000_000;
const MAX_INSTRUCTIONS_CHARS = 10_000;

/** Empty text stands for `{}`. Throws SettingsInvalid with the path of the first thing that is wrong. */
export function claudeSettings(text: string): ClaudeSettings {
  const whole = new Fields("loop_settings", settingsObject(text));
  const context = whole.object("context");
  const windowTokens = context.integer("window_tokens", MIN_WINDOW, MAX_WINDOW);
  const settings = { windowTokens, trim: trimSettings(context), compact: compactSettings(context) };
  context.done();
  whole.done();
  return settings;
}

function settingsObject(text: string): Json {
  if (text.trim() === "") return {};
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new SettingsInvalid("loop_settings is not JSON");
  }
  if (!isObject(value)) throw new SettingsInvalid("loop_settings is not an object");
  return value;
}

function trimSettings(context: Fields): TrimSettings | undefined {
  if (context.isOff("trim_results")) return undefined;
  const fields = context.object("trim_results");
  const atPercent = fields.integer("at_percent", 5, 95) ?? 50;
  const trim = {
    atPercent,
    keepPercent: fields.integer("keep_percent", 0, 90) ?? Math.floor(atPercent * 0.4),
    freePercent: fields.integer("free_percent", 1, 90) ?? Math.max(1, Math.floor(atPercent * 0.3)),
    keepChars: fields.integer("keep_chars", 0, 100_000) ?? 400,
  };
  fields.done();
  if (trim.keepPercent + trim.freePercent > trim.atPercent) {
    throw new SettingsInvalid(
      `${fields.path}: keep_percent and free_percent together are more than at_percent, so nothing would ever be trimmed`,
    );
  }
  return trim;
}

function compactSettings(context: Fields): CompactSettings | undefined {
  if (context.isOff("compact")) return undefined;
  const fields = context.object("compact");
  const atPercent = fields.integer("at_percent", 10, 95) ?? 80;
  const compact = {
    atPercent,
    keepPercent: fields.integer("keep_percent", 0, 50) ?? Math.min(10, Math.floor(atPercent / 2)),
    instructions: fields.text("instructions", MAX_INSTRUCTIONS_CHARS),
  };
  fields.done();
  if (compact.keepPercent * 2 > compact.atPercent) {
    throw new SettingsInvalid(`${fields.path}.keep_percent is more than half of at_percent`);
  }
  return compact;
}

/** The fields of one object, each taken once; what is left over is refused. */
class Fields {
  readonly path: string;
  private readonly values: Map<string, unknown>;

  constructor(path: string, values: Json) {
    this.path = path;
    this.values = new Map(Object.entries(values));
  }

  isOff(name: string): boolean {
    return this.values.get(name) === false && this.values.delete(name);
  }

  object(name: string): Fields {
    const value = this.take(name) ?? {};
    if (!isObject(value)) throw new SettingsInvalid(`${this.path}.${name} must be an object`);
    return new Fields(`${this.path}.${name}`, value);
  }

  integer(name: string, min: number, max: number): number | undefined {
    const value = this.take(name);
    if (value === undefined) return undefined;
    if (!Number.isInteger(value) || (value as number) < min || (value as number) > max) {
      throw new SettingsInvalid(`${this.path}.${name} must be a whole number from ${min} to ${max}`);
    }
    return value as number;
  }

  text(name: string, maxChars: number): string {
    const value = this.take(name) ?? "";
    if (typeof value !== "string" || value.length > maxChars) {
      throw new SettingsInvalid(`${this.path}.${name} must be a text of at most ${maxChars} characters`);
    }
    return value;
  }

  done(): void {
    const [unknown] = this.values.keys();
    if (unknown !== undefined) throw new SettingsInvalid(`${this.path}.${unknown} is not a setting`);
  }

  private take(name: string): unknown {
    const value = this.values.get(name);
    this.values.delete(name);
    return value;
  }
}
