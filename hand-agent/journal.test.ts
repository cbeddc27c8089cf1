import { appendFile, mkdtemp, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { createLogger } from "../kit/log.ts";
import { Journal } from "./journal.ts";

const log = createLogger("test", "silent");
let dir: string;
let file: string;
const opened: Journal[] = [];

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "tendon-journal-"));
  file = join(dir, "journal.log");
});
afterEach(async () => {
  for (const journal of opened.splice(0)) await journal.close().catch(() => {});
  await rm(dir, { recursive: true });
});

function open(options: { compactAboveBytes?: number } = {}): Journal {
  const journal = new Journal({ dataDir: dir, log, ...options });
  opened.push(journal);
  return journal;
}

const call = (key: string) => ({ key, handId: "hand_1", name: "bash", input: '{"command":"x"}', atMs: 1 });
const states = (journal: Journal) => journal.list().map(({ key, state }) => [key, state]);

test("what was started, refused, finished and forgotten is known after a restart, under the same id", async () => {
  const journal = open();
  await Promise.all([journal.start(call("a")), journal.start(call("b")), journal.start(call("c"))]);
  await journal.refuse({ key: "never", atMs: 1 });
  journal.finish("b", Buffer.from("the result"));
  journal.finish("c", Buffer.from("gone"));
  journal.forget("c");
  const again = open();
  expect(again.id).toBe(journal.id);
  expect(states(again)).toEqual([
    ["a", "started"],
    ["b", "finished"],
    ["never", "refused"],
  ]);
  expect(Buffer.from(again.readResult("b")).toString()).toBe("the result");
  expect(again.wasForgotten("c")).toBe(true);
});

test("a started call is on disk when start resolves, and its input is there as a digest only (X1b)", async () => {
  const journal = open();
  await journal.start({ ...call("a"), input: '{"command":"echo secret"}' });
  const text = await readFile(file, "utf8");
  expect(text).toContain('"key":"a"');
  expect(text).not.toContain("secret");
  expect((await stat(file)).mode & 0o777).toBe(0o600);
});

/** Zeros are written ahead of the records. */
async function recordBytes(): Promise<number> {
  const content = await readFile(file);
  return content.indexOf(0) === -1 ? content.length : content.indexOf(0);
}

test("a torn last line is dropped and what stood before it is believed", async () => {
  const journal = open();
  await journal.start(call("a"));
  await journal.start(call("b"));
  await truncate(file, (await recordBytes()) - 5);
  const again = open();
  expect(again.id).toBe(journal.id);
  expect(states(again)).toEqual([["a", "started"]]);
  await again.start(call("c"));
  expect(states(open())).toEqual([
    ["a", "started"],
    ["c", "started"],
  ]);
});

test("a torn last line among the zeros that were written ahead is dropped too", async () => {
  const journal = open();
  await journal.start(call("a"));
  const whole = await recordBytes();
  await journal.start(call("b"));
  const content = await readFile(file);
  content.fill(0, whole + 20);
  await writeFile(file, content);
  const again = open();
  expect(again.id).toBe(journal.id);
  expect(states(again)).toEqual([["a", "started"]]);
});

test("a start neither changes the file's size nor leaves the end of the records in doubt", async () => {
  const journal = open();
  const { size } = await stat(file);
  await journal.start(call("a"));
  expect((await stat(file)).size).toBe(size);
  // More than what was written ahead.
  journal.finish("a", Buffer.alloc(100_000, "x"));
  await journal.start(call("b"));
  const again = open();
  expect(states(again)).toEqual([
    ["a", "finished"],
    ["b", "started"],
  ]);
  expect(again.readResult("a")).toHaveLength(100_000);
});

test("zeros after a crash count as a torn end", async () => {
  const journal = open();
  await journal.start(call("a"));
  await appendFile(file, Buffer.alloc(4096));
  expect(states(open())).toEqual([["a", "started"]]);
});

test("a journal that is corrupt in the middle gets a new id, and the old file is kept aside", async () => {
  const journal = open();
  await journal.start(call("a"));
  await journal.start(call("b"));
  const text = await readFile(file, "utf8");
  await writeFile(file, text.replace('"key":"a"', '"key":"A"'));
  const again = open();
  expect(again.id).not.toBe(journal.id);
  expect(states(again)).toEqual([]);
  expect(await readFile(`${file}.corrupt`, "utf8")).toContain('"key":"b"');
});

test("an empty or foreign file gives a new id", async () => {
  await writeFile(file, "");
  const first = open();
  await writeFile(file, "hello\n");
  expect(open().id).not.toBe(first.id);
});

test("the file stays small however many calls are made, and living results survive its rewriting", async () => {
  const journal = open({ compactAboveBytes: 20_000 });
  await journal.start(call("kept"));
  journal.finish("kept", Buffer.from("kept result"));
  for (let i = 0; i < 500; i++) {
    await journal.start(call(`call_${i}`));
    journal.finish(`call_${i}`, Buffer.alloc(100));
    journal.forget(`call_${i}`);
  }
  await journal.start(call("running"));
  expect(await recordBytes()).toBeLessThan(45_000);
  expect((await stat(file)).size).toBeLessThan(45_000 + 64 * 1024);
  expect(Buffer.from(journal.readResult("kept")).toString()).toBe("kept result");
  expect(journal.wasForgotten("call_3")).toBe(true);
  expect(states(open())).toEqual([
    ["kept", "finished"],
    ["running", "started"],
  ]);
});

test("a large result is read back exactly", async () => {
  const journal = open();
  await journal.start(call("a"));
  const result = Buffer.alloc(2_000_000, "é");
  journal.finish("a", result);
  expect(Buffer.from(journal.readResult("a")).equals(result)).toBe(true);
});

test("after it was closed nothing new is taken", async () => {
  const journal = open();
  await journal.close();
  await expect(journal.start(call("a"))).rejects.toThrow("closed");
});
