import { expect, test } from "vitest";
import { memoryCommand } from "./memory-input.ts";
import { inserted, listing, numbered, replaced } from "./memory-text.ts";

test("lines are shown with their numbers, whole or in part", () => {
  expect(numbered("a\nb\n", undefined)).toBe("     1\ta\n     2\tb");
  expect(numbered("a\nb\nc", [2, 9])).toBe("     2\tb\n     3\tc");
  expect(numbered("", undefined)).toBe("");
});

test("a text is replaced only where it stands once, and literally", () => {
  expect(replaced("a.c abc", "f", "a.c", "$&")).toEqual({ text: "$& abc" });
  expect(replaced("x\nx", "f", "x", "y")).toEqual({ problem: expect.stringContaining("lines 1, 2") });
  // Overlapping places are two as well.
  expect(replaced("aaa", "f", "aa", "b")).toEqual({ problem: expect.stringContaining("more than once") });
  expect(replaced("a", "f", "b", "")).toEqual({ problem: expect.stringContaining("not appear") });
});

test("lines are inserted behind a line, and the last line keeps its end or its lack of one", () => {
  expect(inserted("a\nb\n", 0, "x")).toEqual({ text: "x\na\nb\n" });
  expect(inserted("a\nb\n", 2, "x\n")).toEqual({ text: "a\nb\nx\n" });
  expect(inserted("a", 1, "x")).toEqual({ text: "a\nx" });
  expect(inserted("", 0, "x")).toEqual({ text: "x\n" });
  expect(inserted("a", 2, "x")).toEqual({ problem: expect.stringContaining("from 0 to 1") });
  expect(inserted("a", 0.5, "x")).toEqual({ problem: expect.stringContaining("whole number") });
});

test("a directory is listed two levels deep, with the bytes that are in it, and cut when it is long", () => {
  const files = [
    { path: "/a", size: 1 },
    { path: "/d/e/f", size: 2048 },
    { path: "/d/g", size: 3 },
  ];
  expect(listing("/memories/s", files).split("\n").slice(1)).toEqual([
    "2.0K\t/memories/s",
    "1\t/memories/s/a",
    "2.0K\t/memories/s/d/",
    "2.0K\t/memories/s/d/e/",
    "3\t/memories/s/d/g",
  ]);
  const many = Array.from({ length: 500 }, (_, n) => ({ path: `/f${n}`, size: 1 }));
  expect(listing("/memories/s", many).split("\n").at(-1)).toBe("[101 more; look at one of the directories]");
  expect(listing("/memories/s", [])).toBe("/memories/s is empty.");
});

test("inputs that a model got wrong are told what is missing", () => {
  expect(memoryCommand({ command: "view", path: "/memories", view_range: [3, 1] })).toContain("view_range");
  expect(memoryCommand({ command: "view" })).toContain("path");
  expect(memoryCommand({ command: "create", path: "/x" })).toContain("file_text");
  expect(memoryCommand({ command: "rename", path: "/x" })).toContain("new_path");
  expect(memoryCommand({ command: "str_replace", path: "/x", old_str: "" })).toContain("old_str");
  expect(memoryCommand({ command: "str_replace", path: "/x", old_str: "a" })).toMatchObject({ fresh: "" });
});
