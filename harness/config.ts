import { KNOWN_NAMES } from "../kit/settings/known-names.ts";
import { integer, text, url } from "../kit/settings/parsers.ts";
import { defineSettings, readSettings, type Settings, type SettingValues } from "../kit/settings/settings.ts";
import { dialSettings, programSettings } from "../kit/settings/shared-settings.ts";
import { tracingSettings } from "../kit/trace-settings.ts";

const DAY_MS = 24 * 60 * 60_000;

export const harnessSettings = defineSettings({
  TENDON_URL: {
    parse: url(["http", "https"]),
    default: "http://127.0.0.1:7400",
    help: "Where the server is.",
  },
  TENDON_HARNESS_KEY: {
    parse: text(),
    secret: true,
    required: true,
    help: "The harness's API key (role harness).",
  },
  TENDON_HARNESS_CAPACITY: {
    parse: integer({ min: 1, max: 10_000 }),
    default: 200,
    help: "Sessions that it runs at a time at most.",
  },
  TENDON_HARNESS_HISTORY_MIB: {
    parse: integer({ min: 16, max: 1_000_000 }),
    help: "MiB of memory that the histories of its sessions may take together, files included; by default an eighth of the heap that Node gives it.",
  },
  TENDON_MODEL: {
    parse: text({ maxChars: 256 }),
    help: "Id of the model for agents that name none; by default claude-opus-5-5.",
  },
  TENDON_AUTO_POLICY_MODEL: {
    parse: text({ maxChars: 256 }),
    help: "Id of the model that judges calls whose permission policy is auto; by default the agent's own.",
  },
  TENDON_OUTCOME_MODEL: {
    parse: text({ maxChars: 256 }),
    help: "Id of the model that judges the work towards outcomes; by default the agent's own.",
  },
  ANTHROPIC_API_KEY: {
    parse: text(),
    secret: true,
    help: "Key of the model API. With neither key, token nor base URL a scripted demo model answers.",
  },
  ANTHROPIC_AUTH_TOKEN: {
    parse: text(),
    secret: true,
    help: "Bearer token for a gateway, where that is used instead of a key.",
  },
  ANTHROPIC_BASE_URL: {
    parse: url(["http", "https"]),
    help: "Where the model API is: a gateway, or a local server that speaks it.",
  },
  TENDON_MODEL_TIMEOUT_MS: {
    parse: integer({ min: 1_000, max: DAY_MS }),
    default: 60_000,
    help: "Most milliseconds that a model may be silent before its request counts as failed.",
  },
  TENDON_MODEL_RETRY_FIRST_MS: {
    parse: integer({ min: 1, max: DAY_MS }),
    default: 1_000,
    help: "Milliseconds to wait after a model's first failure; they double with each one.",
  },
  TENDON_MODEL_RETRY_MAX_MS: {
    parse: integer({ min: 1, max: DAY_MS }),
    default: 30_000,
    help: "Most milliseconds between two attempts at a failing model, unless it asks for more.",
  },
  TENDON_MODEL_RETRY_TOTAL_MS: {
    parse: integer({ min: 1, max: DAY_MS }),
    default: 150_000,
    help: "Milliseconds after which a failing model is given up until the next message, attempts included.",
  },
  TENDON_CLAUDE_CODE_PROCESSES: {
    parse: integer({ min: 0, max: 1_000 }),
    default: 8,
    help: "Programs of the loop `claude-code` that run at a time at most, each in some 200 MB; 0: that loop is not offered.",
  },
  TENDON_EXTERNAL_LOOPS: {
    parse: text(),
    help: "JSON file with the programs that agents may name for the loop `external`; without it that loop is not offered.",
  },
  TENDON_EXTERNAL_LOOP_PROCESSES: {
    parse: integer({ min: 1, max: 10_000 }),
    default: 64,
    help: "Programs of the loop `external` that run at a time at most.",
  },
  ...tracingSettings,
  ...dialSettings,
  ...programSettings,
});

export type HarnessConfig = SettingValues<typeof harnessSettings>;

/** Throws a SettingsError with all problems. */
export function readConfig(): Settings<typeof harnessSettings> {
  const environment = { ...process.env };
  for (const [name, setting] of Object.entries(harnessSettings)) {
    if ("secret" in setting) delete process.env[name];
  }
  return readSettings(harnessSettings, environment, { knownElsewhere: KNOWN_NAMES });
}

/** Of this process's environment, what programs that a harness starts may have: nothing of ours, and nothing secret. */
const PASSED_ON = ["PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"];

export function childEnvironment(): Record<string, string> {
  const environment: Record<string, string> = {};
  for (const name of PASSED_ON) {
    const value = process.env[name];
    if (value !== undefined) environment[name] = value;
  }
  return environment;
}
