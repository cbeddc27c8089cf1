import { expect, test } from "vitest";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import { Announcer } from "./announcer.ts";
import { type Announcement, Interests } from "./interests.ts";

async function settle(): Promise<void> {
  for (let turn = 0; turn < 50; turn += 1) await Promise.resolve();
}

/** A replica with watchers, and another that hears of them unless `fails`. */
function pair() {
  const clock = new FakeClock();
  const interests = new Interests(clock);
  const watched = new Set<string>();
  const world = { clock, interests, watched, fails: false, sent: [] as Omit<Announcement, "replicaId">[] };
  const announcer = new Announcer({
    clock,
    all: () => [...watched],
    send: async (announcement) => {
      if (world.fails) throw new Error("gone");
      world.sent.push(announcement);
      return !world.interests.take({ replicaId: "rplc_a", ...announcement });
    },
  });
  const change = (sessionId: string, is: boolean) => {
    if (is) watched.add(sessionId);
    else watched.delete(sessionId);
    announcer.changed(sessionId, is);
  };
  const pass = async (ms: number) => {
    await clock.advance(ms);
    await settle();
  };
  return { world, announcer, change, pass };
}

test("sessions are wanted from soon after their first watcher until soon after their last", async () => {
  const { world, change, pass } = pair();
  await pass(1);
  change("s1", true);
  change("s2", true);
  await pass(10);
  expect(world.sent.at(-1)).toEqual({ fromScratch: false, watched: ["s1", "s2"], unwatched: [] });
  change("s1", false);
  await pass(10);
  expect(["s1", "s2"].map((id) => world.interests.wants("rplc_a", id))).toEqual([false, true]);
  expect(world.interests.size).toBe(1);
});

test("an interest that is not announced again is forgotten; one that is stays", async () => {
  const { world, announcer, change, pass } = pair();
  change("s1", true);
  for (let second = 0; second < 30; second += 1) await pass(1_000);
  expect(world.interests.wants("rplc_a", "s1")).toBe(true);
  announcer.stop();
  for (let second = 0; second < 16; second += 1) await pass(1_000);
  expect(world.interests.wants("rplc_a", "s1")).toBe(false);
  expect(world.interests.size).toBe(0);
});

test("a replica that forgot everything, or missed something, is told everything again", async () => {
  const { world, change, pass } = pair();
  for (let index = 0; index < 2_500; index += 1) world.watched.add(`s${index}`);
  await pass(1);
  expect(world.sent.map(({ fromScratch, watched }) => [fromScratch, watched.length])).toEqual([
    [true, 1_000],
    [false, 1_000],
    [false, 500],
  ]);
  world.fails = true;
  change("new", true);
  await pass(10);
  world.fails = false;
  await pass(1_000);
  expect(world.interests.wants("rplc_a", "new")).toBe(true);
  world.interests = new Interests(world.clock);
  await pass(5_000);
  await pass(1);
  expect(world.interests.size).toBe(2_501);
});
