import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, expectTypeOf, test } from "vitest";
import { duration, durationText, flag, integer, list, oneOf, port, text, url } from "./parsers.ts";
import { printConfig, settingsHelp, settingsTable } from "./print.ts";
import { defineSettings, readSettings, SettingsError, settingNames } from "./settings.ts";

const table = defineSettings({
  TENDON_PORT: { parse: port(), default: 7400, help: "The port for everything." },
  TENDON_URL: { parse: url(["http", "https"]), help: "Where the server is." },
  TENDON_API_KEY: { parse: text({ maxChars: 40 }), secret: true, help: "The key of this program." },
  TENDON_MODE: {
    parse: oneOf(["auto", "mixed"]),
    required: true,
    help: "Where clear HTTP/2 goes: auto | mixed.",
  },
  HTTPS_PROXY: { parse: url(["http"]), aliases: ["https_proxy"], help: "The corporate proxy." },
});

const directory = mkdtempSync(join(tmpdir(), "tendon-settings-"));
afterAll(() => rmSync(directory, { recursive: true }));

function secretFile(content: string): string {
  const path = join(directory, `secret-${Math.random().toString(36).slice(2)}`);
  writeFileSync(path, content);
  return path;
}

function problems(environment: Record<string, string>, knownElsewhere: string[] = []): readonly string[] {
  try {
    readSettings(table, { TENDON_MODE: "auto", ...environment }, { knownElsewhere });
  } catch (error) {
    if (error instanceof SettingsError) return error.problems;
    throw error;
  }
  return [];
}

test("values come from the environment or are the defaults, with their types", () => {
  const environment = { TENDON_MODE: "mixed", TENDON_URL: "https://a", TENDON_API_KEY: "", PATH: "/bin" };
  const { values } = readSettings(table, environment, { knownElsewhere: [] });
  expectTypeOf(values.TENDON_PORT).toEqualTypeOf<number>();
  expectTypeOf(values.TENDON_URL).toEqualTypeOf<string | undefined>();
  expectTypeOf(values.TENDON_MODE).toEqualTypeOf<"auto" | "mixed">();
  expect(values).toEqual({
    TENDON_PORT: 7400,
    TENDON_URL: "https://a",
    TENDON_API_KEY: undefined,
    TENDON_MODE: "mixed",
    HTTPS_PROXY: undefined,
  });
});

test("all problems are told together, one line each", () => {
  const found = problems({
    TENDON_PORT: "70000",
    TENDON_URL: "localhost",
    TENDON_MODE: "",
    TENDON_PROT: "1",
  });
  expect(found).toEqual([
    "TENDON_PROT is no setting that Tendon knows; did you mean TENDON_PORT?",
    'TENDON_PORT must be a whole number from 0 to 65535, not "70000"',
    'TENDON_URL must be a URL that begins with http:// or https://, not "localhost"',
    "TENDON_MODE must be set: Where clear HTTP/2 goes: auto | mixed.",
  ]);
});

test("names that other programs know are accepted, others are refused with or without a guess", () => {
  expect(problems({ TENDON_MODEL: "m" }, ["TENDON_MODEL"])).toEqual([]);
  expect(problems({ TENDON_MODELL: "m" }, ["TENDON_MODEL"])[0]).toContain("did you mean TENDON_MODEL?");
  expect(problems({ TENDON_SOMETHING_ELSE: "m" })).toEqual([
    "TENDON_SOMETHING_ELSE is no setting that Tendon knows",
  ]);
  expect(problems({ TENDON_PORT_FILE: "/x" })).toHaveLength(1);
});

test("a secret may come from a file, without its last line break", () => {
  const path = secretFile("top secret\n");
  const environment = { TENDON_MODE: "auto", TENDON_API_KEY_FILE: path };
  const settings = readSettings(table, environment, { knownElsewhere: [] });
  expect(settings.values.TENDON_API_KEY).toBe("top secret");
  expect(settings.sources.TENDON_API_KEY).toEqual({ kind: "file", path });
});

test("a secret from two places, an unreadable file and an empty one are problems", () => {
  expect(problems({ TENDON_API_KEY: "a", TENDON_API_KEY_FILE: "/x" })).toEqual([
    "TENDON_API_KEY and TENDON_API_KEY_FILE are both set; set one of them",
  ]);
  expect(problems({ TENDON_API_KEY_FILE: "/nowhere/key" })[0]).toContain("cannot read /nowhere/key");
  expect(problems({ TENDON_API_KEY_FILE: secretFile("\n") })[0]).toContain("is empty");
});

test("a secret that is not valid is not repeated", () => {
  const secret = "s".repeat(50);
  const [problem] = problems({ TENDON_API_KEY: secret });
  expect(problem).toBe("TENDON_API_KEY must be at most 40 characters");
});

test("an alias is used when the name itself is not set", () => {
  const read = (environment: Record<string, string>) =>
    readSettings(table, { TENDON_MODE: "auto", ...environment }, { knownElsewhere: [] }).values.HTTPS_PROXY;
  expect(read({ https_proxy: "http://lower" })).toBe("http://lower");
  expect(read({ https_proxy: "http://lower", HTTPS_PROXY: "http://upper" })).toBe("http://upper");
});

test("the printed configuration says where values came from and shows no secret", () => {
  const environment = {
    TENDON_MODE: "auto",
    TENDON_API_KEY: "top secret",
    https_proxy: "http://ada:hunter2@proxy:3128",
  };
  const printed = printConfig(readSettings(table, environment, { knownElsewhere: [] }));
  expect(printed).toBe(
    [
      "TENDON_PORT=7400  # default",
      "TENDON_URL=  # not set",
      "TENDON_API_KEY=[secret]  # environment",
      "TENDON_MODE=auto  # environment",
      "HTTPS_PROXY=http://ada:[secret]@proxy:3128  # environment (https_proxy)",
      "",
    ].join("\n"),
  );
});

test("the table for the documentation has every setting, and a secret's file", () => {
  const rows = settingsTable(table).split("\n");
  expect(rows).toHaveLength(2 + 5 + 1);
  expect(rows[2]).toBe("| `TENDON_PORT` | `7400` | The port for everything. |");
  expect(rows[4]).toBe("| `TENDON_API_KEY`<br>`TENDON_API_KEY_FILE` |  | The key of this program. |");
  expect(rows[5]).toContain("must be set | Where clear HTTP/2 goes: auto \\| mixed.");
  expect(settingNames(table)).toContain("TENDON_API_KEY_FILE");
});

test("the help is plain text: names, default and meaning, no wider than a terminal", () => {
  const help = settingsHelp({
    ...table,
    TENDON_LONG: { parse: text(), help: "many words ".repeat(20).trim() },
  });
  expect(help).toContain("  TENDON_PORT (default: 7400)\n      The port for everything.\n");
  expect(help).toContain("  TENDON_API_KEY, TENDON_API_KEY_FILE\n");
  expect(help).toContain("  TENDON_MODE (must be set)\n");
  expect(help).not.toMatch(/[`|]{2}|^\|/m);
  expect(Math.max(...help.split("\n").map((line) => line.length))).toBeLessThanOrEqual(100);
});

test("parsers say what they want", () => {
  expect(integer({ min: 1, max: 5 })("3")).toBe(3);
  for (const bad of ["0", "6", "3.5", "0x3", "", "three"])
    expect(() => integer({ min: 1, max: 5 })(bad)).toThrow();
  expect([flag()("Yes"), flag()("0")]).toEqual([true, false]);
  expect(() => flag()("maybe")).toThrow("must be true or false");
  const parse = duration({ minMs: 1_000, maxMs: 86_400_000 });
  expect([parse("1s"), parse("15m"), parse("24h"), parse("1d")]).toEqual([
    1_000, 900_000, 86_400_000, 86_400_000,
  ]);
  for (const bad of ["1", "1ms", "2d", "-1s", "1.5s"]) expect(() => parse(bad)).toThrow("from 1s to 1d");
  expect([durationText(0), durationText(90_000), durationText(3_600_000)]).toEqual(["0ms", "90s", "1h"]);
  expect(list(integer({ min: 0, max: 9 }))("1, 2,,3")).toEqual([1, 2, 3]);
});
