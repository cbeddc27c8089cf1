import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { systemClock } from "../kit/clock.ts";
import { eventually } from "../test/kit/eventually.ts";
import { claimDataDir } from "./data-dir.ts";

let dir = "";
const children: ChildProcess[] = [];
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "tendon-claim-"));
});
afterEach(async () => {
  for (const child of children.splice(0)) child.kill("SIGKILL");
  await rm(dir, { recursive: true, force: true });
});

function fieldsOf(pid: number): string[] {
  const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ");
}

/** As the agent with this process id would have left it. */
function writeLock(pid: number): Promise<void> {
  const lock = { pid, nonce: "0011223344556677", startedAt: fieldsOf(pid)[19] };
  return writeFile(join(dir, "agent.lock"), JSON.stringify(lock));
}

function start(command: string): ChildProcess {
  const child = spawn("sh", ["-c", command], { stdio: ["ignore", "pipe", "ignore"] });
  children.push(child);
  return child;
}

test("a holder that was killed and is still on its way out is waited for", async () => {
  const holder = start("exec sleep 60");
  await writeLock(holder.pid!);
  let look = () => {};
  const looked = new Promise<void>((resolve) => {
    look = resolve;
  });
  const clock = {
    ...systemClock,
    sleep: (delayMs: number) => {
      look();
      return systemClock.sleep(delayMs);
    },
  };
  const claiming = claimDataDir(dir, { clock, dyingWithinMs: 20_000 });
  await looked; // it has found the holder alive
  holder.kill("SIGKILL");
  const claimed = await claiming;
  expect(JSON.parse(await readFile(join(dir, "agent.lock"), "utf8")).pid).toBe(process.pid);
  await claimed.release();
});

test("a holder that is dead, and whose parent has not heard of it yet, holds nothing", async () => {
  const parent = start("sleep 0.01 & echo $!; exec sleep 60");
  const pid = await new Promise<number>((resolve) =>
    parent.stdout!.once("data", (text) => resolve(Number(text))),
  );
  const lock = writeLock(pid);
  await eventually(() => fieldsOf(pid)[0] === "Z");
  await lock;
  const claimed = await claimDataDir(dir, { clock: systemClock, dyingWithinMs: 0 });
  await claimed.release();
});

test("a holder that lives on keeps the directory", async () => {
  const holder = start("exec sleep 60");
  await writeLock(holder.pid!);
  await expect(claimDataDir(dir, { clock: systemClock, dyingWithinMs: 100 })).rejects.toThrow(
    `another hand agent (process ${holder.pid}) uses the data directory`,
  );
});
