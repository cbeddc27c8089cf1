import { expect, test } from "vitest";
import { contentProblem, entriesAt, mountPaths, pathProblem, slugOf } from "./rules.ts";

test("a path has parts that every file system and every program reads alike", () => {
  for (const path of ["/a", "/a b/ü.md", "/.hidden", `/${"x/".repeat(19)}x`, "/日本"])
    expect(pathProblem(path)).toBeUndefined();
  const wrong = [
    "",
    "a",
    "/",
    "/a/",
    "//a",
    "/a/./b",
    "/a/../b",
    "/a\tb",
    "/a\u2028b",
    "/\u200b",
    "/e\u0301",
  ];
  for (const path of [...wrong, `/${"x/".repeat(20)}x`, `/${"é".repeat(128)}`])
    expect(pathProblem(path), JSON.stringify(path)).toBeTypeOf("string");
});

test("a text is counted in bytes", () => {
  expect(contentProblem("é".repeat(51_200))).toBeUndefined();
  expect(contentProblem("é".repeat(51_201))).toContain("102400");
  expect(contentProblem("\0")).toContain("NUL");
});

test("directories in hands have plain names, each its own", () => {
  expect(slugOf("Team notes (2026)")).toBe("team-notes-2026");
  expect(slugOf("Ärger & Öl")).toBe("arger-ol");
  expect(slugOf("日本")).toBe("memory");
  expect(slugOf(`${"a".repeat(63)} b`)).toBe("a".repeat(63));
  expect(mountPaths(["A b", "a-b", "A_B", "other"])).toEqual([
    "/mnt/memory/a-b",
    "/mnt/memory/a-b-2",
    "/mnt/memory/a-b-3",
    "/mnt/memory/other",
  ]);
});

test("a listing of one level tells of what lies deeper once, by its directory", () => {
  const at = (...paths: string[]) => paths.map((path) => ({ path }));
  const all = at("/a", "/b.md", "/b/x", "/b/y/z", "/c/d");
  expect(entriesAt(all, "", 1)).toEqual([...at("/a", "/b.md"), "/b/", "/c/"]);
  expect(entriesAt(at("/b/x", "/b/y/z"), "/b/", 1)).toEqual([...at("/b/x"), "/b/y/"]);
  expect(entriesAt(all, "", 0)).toEqual(all);
});
