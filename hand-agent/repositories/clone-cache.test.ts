import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import { CloneCache } from "./clone-cache.ts";

let dir: string;
let clock: FakeClock;
let owner = "hagt_1";
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "tendon-clones-"));
  clock = new FakeClock();
  owner = "hagt_1";
});
afterEach(() => rm(dir, { recursive: true, force: true }));

const cacheOf = (maxBytes: number) => new CloneCache({ dir, maxBytes, owner: () => owner, clock });
const URL = "https://git.example/a/b.git";

async function* bytes(...chunks: string[]): AsyncGenerator<Uint8Array> {
  for (const chunk of chunks) yield Buffer.from(chunk);
}

async function textOf(cache: CloneCache, key: string): Promise<string | undefined> {
  const kept = await cache.find(key);
  if (kept === undefined) return undefined;
  const chunks: Uint8Array[] = [];
  for await (const chunk of kept.read()) chunks.push(chunk);
  return `${kept.tips}:${Buffer.concat(chunks)}`;
}

test("what is kept is for one repository by any spelling, one credential's rights, and one agent", () => {
  const cache = cacheOf(1_000);
  const key = cache.keyOf(URL, "rights");
  expect(cache.keyOf("https://GIT.example/a/b/", "rights")).toBe(key);
  expect(cache.keyOf("https://git.example/a/c", "rights")).not.toBe(key);
  expect(cache.keyOf(URL, "none")).not.toBe(key);
  owner = "hagt_2";
  expect(cache.keyOf(URL, "rights")).not.toBe(key);
  expect(cache.keyOf(URL, "")).toBeUndefined();
  expect(cacheOf(0).keyOf(URL, "rights")).toBeUndefined();
});

test("a bundle is kept whole or not at all, and the newest stands", async () => {
  const cache = cacheOf(400);
  const store = (tips: string, isWhole: boolean, ...chunks: string[]) =>
    cache.store("k", tips, bytes(...chunks), async () => isWhole);
  expect(await store("1", true, "ab", "cd")).toBe(true);
  expect(await textOf(cache, "k")).toBe("1:abcd");
  expect(await store("2", false, "broken")).toBe(false);
  expect(await store("3", true, "x".repeat(101))).toBe(false);
  expect(await store("4", true)).toBe(false);
  expect(await textOf(cache, "k")).toBe("1:abcd");
  expect(await store("5", true, "new")).toBe(true);
  expect(await textOf(cache, "k")).toBe("5:new");
  expect((await readdir(dir)).sort()).toEqual(["k.bundle", "k.tips"]);
});

test("the least recently used goes when there is no room for all, and what a crash has left goes too", async () => {
  await writeFile(join(dir, "left.new"), "half");
  const cache = cacheOf(400);
  for (const key of ["a", "b", "c", "d"]) {
    await cache.store(key, "t", bytes("x".repeat(100)), async () => true);
    // As if used in this order, long ago.
    await clock.advance(60_000);
    expect(await cache.find(key)).toBeDefined();
  }
  await clock.advance(60_000);
  await cache.find("a");
  await cache.store("e", "t", bytes("y".repeat(90)), async () => true);
  const kept = (await readdir(dir)).filter((name) => name.endsWith(".bundle")).sort();
  expect(kept).toEqual(["a.bundle", "c.bundle", "d.bundle", "e.bundle"]);
  expect(await readdir(dir)).not.toContain("left.new");
});
