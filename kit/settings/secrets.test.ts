import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { text } from "./parsers.ts";
import { defineSettings, readSettings, SettingsError } from "./settings.ts";

const table = defineSettings({ TENDON_API_KEY: { parse: text(), secret: true, help: "The key." } });

const directory = mkdtempSync(join(tmpdir(), "tendon-secrets-"));
afterAll(() => rmSync(directory, { recursive: true }));

/** The value when it comes as a variable and when it comes from a file; the problem in its place. */
function read(value: string): string[] {
  const file = join(directory, "secret");
  writeFileSync(file, value);
  return [{ TENDON_API_KEY: value }, { TENDON_API_KEY_FILE: file }].map((environment) => {
    try {
      return readSettings(table, environment, { knownElsewhere: [] }).values.TENDON_API_KEY ?? "";
    } catch (error) {
      if (error instanceof SettingsError) return `problem: ${error.message}`;
      throw error;
    }
  });
}

test.each(["tk_secret\n", "tk_secret\r\n", "tk_secret \t\r\n\n"])(
  "white space at the end of a secret is no part of it, from a variable or a file: %j",
  (value) => {
    expect(read(value)).toEqual(["tk_secret", "tk_secret"]);
  },
);

test.each(["tk_one\ntk_two", "tk_one\r\ntk_two\n", "tk_\u0000one", "tk_\u001bone", "tk_\u0085one"])(
  "a control character within a secret is a problem that does not repeat it: %j (S2)",
  (value) => {
    for (const [index, problem] of read(value).entries()) {
      const name = index === 0 ? "TENDON_API_KEY" : "TENDON_API_KEY_FILE";
      expect(problem).toBe(`problem: ${name} holds a control character (a line break?) within the secret`);
    }
  },
);

test("a secret of nothing but white space is a problem", () => {
  const [variable, file] = read(" \n");
  expect(variable).toBe("problem: TENDON_API_KEY holds nothing but white space");
  expect(file).toMatch(/^problem: TENDON_API_KEY_FILE: .* is empty$/);
});
