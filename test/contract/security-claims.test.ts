/**
 * docs/security.md says what nobody can do, and which test shows it: each test that it names is there, and each row that claims
 * something names one, or says in so many words that nothing shows it.
 */
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

const root = fileURLToPath(new URL("../..", import.meta.url));
const page = readFileSync(join(root, "docs/security.md"), "utf8");
const FOLDERS = ["cli", "hand-agent", "harness", "kit", "mcp-proxy", "server", "test"];
const SHOWN_BY = "shown by";
/** How a row says that no test shows it. */
const NOT_SHOWN = "not shown";

/** Titles of tests and their groups, by the name of their file. */
const titles = new Map<string, string[]>();
for (const folder of FOLDERS) {
  for (const path of readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })) {
    if (!path.endsWith(".test.ts")) continue;
    const text = readFileSync(join(root, folder, path), "utf8");
    // The first argument of a call, as the titles of tests, groups and tables of cases are.
    const found = [...text.matchAll(/\(\s*(["'`])((?:\\.|(?!\1).)*)\1\s*,/g)];
    titles.set(basename(path), [...(titles.get(basename(path)) ?? []), ...found.map((match) => match[2]!)]);
  }
}

interface Row {
  readonly text: string;
  readonly shownBy: string;
}

/** Of every table with a column "shown by". */
function claimRows(): Row[] {
  const rows: Row[] = [];
  let column = -1;
  for (const line of page.split("\n")) {
    if (!line.startsWith("|")) {
      column = -1;
      continue;
    }
    const cells = line
      .split(/(?<!\\)\|/)
      .slice(1, -1)
      .map((cell) => cell.trim());
    if (cells.includes(SHOWN_BY)) column = cells.indexOf(SHOWN_BY);
    else if (column >= 0 && !/^-+$/.test(cells[0] ?? ""))
      rows.push({ text: cells[0]!, shownBy: cells[column] ?? "" });
  }
  return rows;
}

/** Each file that a text names, with the titles in quotes that follow it. */
function referencesIn(text: string): { file: string; titles: string[] }[] {
  return [...text.matchAll(/`([\w-]+\.test\.ts)`((?:(?!`[\w-]+\.test\.ts`).)*)/gs)].map(
    ([, file = "", rest = ""]) => ({
      file,
      titles: [...rest.matchAll(/"([^"]+)"/g)].map((match) => match[1]!),
    }),
  );
}

/** "begins so…" names a title by its beginning; a part is enough. */
function isTitle(file: string, named: string): boolean {
  const wanted = named.replace(/…$/, "");
  return (titles.get(file) ?? []).some((title) => title.includes(wanted));
}

test("every test that docs/security.md names is there: its file, and its title", () => {
  const references = referencesIn(page);
  expect(references.length).toBeGreaterThan(30);
  const missing = references.flatMap(({ file, titles: named }) => [
    ...(titles.has(file) ? [] : [file]),
    ...named.filter((title) => !isTitle(file, title)).map((title) => `${file}: ${title}`),
  ]);
  expect(missing).toEqual([]);
});

test("every claim of docs/security.md names a test, with its title, or says that none shows it", () => {
  const rows = claimRows();
  expect(rows.length).toBeGreaterThan(30);
  const bare = rows.filter(({ shownBy }) => {
    const named = referencesIn(shownBy);
    if (shownBy.startsWith(NOT_SHOWN)) return false;
    return named.length === 0 || !named.some(({ titles: some }) => some.length > 0);
  });
  expect(bare.map(({ text }) => text)).toEqual([]);
});

test("what has no test is counted, so that it does not grow unseen", () => {
  const open = claimRows().filter(({ shownBy }) => shownBy.startsWith(NOT_SHOWN));
  expect(open.map(({ text }) => text)).toEqual(NOT_SHOWN_YET);
});

/** Rows of the page without a test; each is explained there. */
const NOT_SHOWN_YET = [
  "**the machine** of a program, as its root",
  "**an operator** with the sealing key and the database",
];
