import {
  appendFileSync,
  existsSync,
  mkdtempSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { lastLines, openLogFile } from "./log-file.ts";

let folder = "";
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "tendon-log-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

test("a log above 10 MiB is set aside once", () => {
  const { path } = openLogFile(folder, "server");
  writeFileSync(path, "");
  truncateSync(path, 10 * 1024 * 1024 + 1);
  expect(openLogFile(folder, "server").sizeBytes()).toBe(0);
  expect(statSync(`${path}.1`).size).toBe(10 * 1024 * 1024 + 1);
  openLogFile(folder, "server");
  expect(existsSync(`${path}.1`)).toBe(true);
});

test("the last lines are those since the start: the plain ones, which are for people", () => {
  const { path } = openLogFile(folder, "server");
  writeFileSync(path, "from before\n");
  const offset = statSync(path).size;
  appendFileSync(path, '{"msg":"starts"}\ntendon-server: the port is in use\n');
  expect(lastLines(path, offset)).toEqual(["tendon-server: the port is in use"]);
});

test("a program that said nothing for people is told by its log", () => {
  const { path } = openLogFile(folder, "server");
  writeFileSync(path, '{"msg":"starts"}\n{"msg":"no","error":"why"}\n');
  expect(lastLines(path, 0)).toEqual(["starts", "no: why"]);
});

test("never more than ten lines of a long log", () => {
  const { path } = openLogFile(folder, "server");
  writeFileSync(path, "line\n".repeat(100_000));
  expect(lastLines(path, 0)).toHaveLength(10);
});
