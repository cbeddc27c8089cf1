import { expect, test } from "vitest";
import { AgentAdmission } from "./agent-admission.ts";

function task(log: string[], name: string) {
  let end!: () => void;
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  const run = async () => {
    log.push(name);
    await ended;
  };
  return { run, end };
}

const settle = () => new Promise((resolve) => setImmediate(resolve));

test("so many are taken in at a time, the others in their order", async () => {
  const admission = new AgentAdmission(2);
  const log: string[] = [];
  const tasks = ["a", "b", "c", "d"].map((name) => task(log, name));
  const { signal } = new AbortController();
  const runs = tasks.map(({ run }) => admission.run(signal, run));
  await settle();
  expect(log).toEqual(["a", "b"]);
  tasks[1]?.end();
  await settle();
  expect(log).toEqual(["a", "b", "c"]);
  for (const { end } of tasks) end();
  await Promise.all(runs);
  expect(log).toEqual(["a", "b", "c", "d"]);
});

test("who leaves while waiting is not run, and keeps nobody out", async () => {
  const admission = new AgentAdmission(1);
  const log: string[] = [];
  const first = task(log, "first");
  const impatient = new AbortController();
  const running = admission.run(new AbortController().signal, first.run);
  const left = admission.run(impatient.signal, task(log, "left").run);
  const last = task(log, "last");
  const waiting = admission.run(new AbortController().signal, last.run);
  impatient.abort(new Error("gone"));
  await expect(left).rejects.toThrow("gone");
  await expect(admission.run(impatient.signal, last.run)).rejects.toThrow("gone");
  first.end();
  last.end();
  await Promise.all([running, waiting]);
  expect(log).toEqual(["first", "last"]);
});

test("a failure gives its place back", async () => {
  const admission = new AgentAdmission(1);
  const { signal } = new AbortController();
  await expect(admission.run(signal, () => Promise.reject(new Error("broken")))).rejects.toThrow("broken");
  expect(await admission.run(signal, async () => "in")).toBe("in");
});
