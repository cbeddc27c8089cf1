import { join } from "node:path";
import { glob } from "tinyglobby";
import { expect, test } from "vitest";
import { KNOWN_NAMES } from "../../kit/settings/known-names.ts";
import { type SettingsTable, settingNames } from "../../kit/settings/settings.ts";

const ROOT = join(import.meta.dirname, "../..");

/** What a config file exports that looks like a table of settings. */
function tablesOf(module: Record<string, unknown>): SettingsTable[] {
  const isSetting = (value: unknown) =>
    typeof value === "object" && value !== null && "parse" in value && "help" in value;
  return Object.values(module).filter(
    (value): value is SettingsTable =>
      typeof value === "object" &&
      value !== null &&
      Object.values(value).length > 0 &&
      Object.values(value).every(isSetting),
  );
}

test("every setting of every program is in the list of names that all programs know", async () => {
  const files = await glob(["*/config.ts"], { cwd: ROOT, ignore: ["node_modules/**", "dist/**"] });
  const missing: string[] = [];
  for (const file of files) {
    const tables = tablesOf(await import(join(ROOT, file)));
    if (tables.length === 0) missing.push(`${file} exports no table`);
    const names = tables.flatMap(settingNames).filter((name) => name.startsWith("TENDON_"));
    missing.push(...names.filter((name) => !KNOWN_NAMES.includes(name)).map((name) => `${file}: ${name}`));
  }
  expect(files.length).toBeGreaterThan(0);
  expect(missing).toEqual([]);
});

test("no name is listed twice", () => {
  expect(new Set(KNOWN_NAMES).size).toBe(KNOWN_NAMES.length);
});
