/** The scripted driver: without a script it is a driver like any other, with one it fails exactly as that says. */
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { type Driver, type Hand, HandError } from "../../hand-agent/drivers/driver.ts";
import { DRIVERS, makeDrivers } from "../../hand-agent/drivers/registry.ts";
import { type Rule, Script } from "../../hand-agent/drivers/scripted/script.ts";
import { ScriptedDriver } from "../../hand-agent/drivers/scripted/scripted-driver.ts";
import { TOOL_DEFINITIONS } from "../../hand-agent/tools/registry.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { zombiesBelow } from "../kit/process-list.ts";
import { textOf, toolCaller } from "../kit/tool-caller.ts";
import { describeDriver } from "./driver-contract.ts";

const cleanups: (() => Promise<unknown> | unknown)[] = [];
afterEach(async () => {
  for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
});

function makeScripted(): {
  driver: Driver;
  inner: Driver;
  say: (...rules: Rule[]) => void;
  remove: () => void;
} {
  const dataDir = mkdtempSync(join(tmpdir(), "tendon-scripted-"));
  chmodSync(dataDir, 0o711);
  const log = createLogger("test", "silent");
  const inner = DRIVERS.process!({ dataDir, clock: systemClock, log, tools: TOOL_DEFINITIONS, process: {} });
  let text = "";
  const driver = new ScriptedDriver({ inner, script: new Script(() => text), clock: systemClock });
  return {
    driver,
    inner,
    say: (...rules) => {
      text = JSON.stringify({ rules });
    },
    remove: () => rmSync(dataDir, { recursive: true, force: true }),
  };
}

describeDriver("scripted", async () => {
  const { driver, remove } = makeScripted();
  return { driver, zombies: zombiesBelow, dispose: async () => remove() };
});

async function withHand() {
  const scripted = makeScripted();
  cleanups.push(scripted.remove);
  const hand = await scripted.driver.provision({ handId: "hand_1" });
  cleanups.push(async () => {
    scripted.say();
    await hand.destroy();
  });
  return { ...scripted, hand, call: toolCaller(hand) };
}

test("no agent offers it unless a script is named", () => {
  const options = {
    dataDir: mkdtempSync(join(tmpdir(), "tendon-scripted-")),
    clock: systemClock,
    log: createLogger("test", "silent"),
    tools: [],
    process: {},
  };
  cleanups.push(() => rmSync(options.dataDir, { recursive: true }));
  expect(Object.keys(DRIVERS)).not.toContain("scripted");
  expect(makeDrivers(options).map(({ name }) => name)).not.toContain("scripted");
  expect(makeDrivers(options, "/nowhere/script.json").map(({ name }) => name)).toContain("scripted");
});

test("a rule counts its matches, and whatever it does not name happens", async () => {
  const { driver, say } = await withHand();
  say({ on: "provision", hand: "hand_2", after: 1, times: 2, does: { fail: "no disk" } });
  const made: Hand[] = [];
  for (const handId of ["hand_2", "hand_2", "hand_3", "hand_2", "hand_2"]) {
    await driver.provision({ handId }).then(
      (hand) => made.push(hand),
      (error) => expect(error).toEqual(new HandError("no disk")),
    );
  }
  expect(made.map(({ id }) => id)).toEqual(["hand_2", "hand_3", "hand_2"]);
  for (const hand of new Set(made)) await hand.destroy();
});

test("a provision that hangs ends with its caller's patience", async () => {
  const { driver, say } = await withHand();
  say({ on: "provision", does: { hang: true } });
  const stop = new AbortController();
  const made = driver.provision({ handId: "hand_2" }, stop.signal);
  stop.abort(new Error("enough"));
  await expect(made).rejects.toThrow("enough");
  expect(await driver.listHandIds()).toEqual(["hand_1"]);
});

test("recover says gone, and the workspace is still there for a driver that looks again", async () => {
  const { driver, hand, call, say } = await withHand();
  await call.bash("echo kept > f");
  say({ on: "recover", times: 1, does: { gone: true } });
  await hand.park?.();
  expect(await driver.recover(hand.handle)).toBe("gone");
  const again = await driver.recover(hand.handle);
  if (again === "gone") throw new Error("gone twice");
  expect(textOf(await toolCaller(again).bash("cat f"))).toBe("kept");
  await again.destroy();
});

test("the sandbox ends at the byte that is named, in the middle of a call; the next one has a new shell", async () => {
  const { call, say } = await withHand();
  say({ on: "output", times: 1, does: { endAtByte: 10 } });
  const cut = await call.bash("X=1; printf 0123456789abcdef; sleep 60");
  expect(cut).toMatchObject({ isError: true });
  expect(textOf(cut)).toMatch(/^0123456789\n.*terminated\n\[the sandbox ended at byte 10/);
  expect(textOf(await call.bash('echo "[$X]"'))).toBe("[]");
});

test("output floods before it ends, and a bug is no failure that may be shown", async () => {
  const { call, say, driver } = await withHand();
  say(
    { on: "output", times: 1, does: { flood: 300_000 } },
    { on: "provision", does: { bug: "undefined is no function" } },
  );
  const flooded = await call.bash("echo end");
  expect(flooded.artefacts).toMatchObject([{ bytes: 300_004 }]);
  expect(textOf(flooded)).toMatch(/xend$/);
  await expect(driver.provision({ handId: "hand_2" })).rejects.toThrow(TypeError);
});

test("destroy fails and leaves processes as it is told; probe says not available", async () => {
  const { driver, say, hand } = await withHand();
  say(
    { on: "destroy", times: 1, does: { fail: "the engine is away" } },
    { on: "probe", does: { fail: "no kernel" } },
  );
  await expect(driver.discard(hand.id)).rejects.toThrow("the engine is away");
  expect(await driver.listHandIds()).toEqual(["hand_1"]);
  expect(await driver.probe()).toEqual({ available: false, reason: "no kernel" });
  say({ on: "destroy", does: { left: 2 } });
  expect((await driver.discard(hand.id)).left).toHaveLength(2);
  expect(await driver.listHandIds()).toEqual([]);
});

test("a script with a typing error is refused instead of passing for no failure", async () => {
  const { driver, say } = await withHand();
  say({ on: "provison" as "provision", does: { fail: "x" } });
  await expect(driver.provision({ handId: "hand_2" })).rejects.toThrow(/rules\[0\]\.on must be one of/);
  say({ on: "provision", does: { fial: "x" } as never });
  await expect(driver.provision({ handId: "hand_2" })).rejects.toThrow(/unknown fial/);
});
