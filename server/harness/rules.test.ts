import { describe, expect, test } from "vitest";
import {
  canTake,
  choose,
  chooseToEmpty,
  type HarnessLoad,
  isPoison,
  mustRunAlone,
  roomsOf,
} from "./rules.ts";

function harness(sessions: number, more: Partial<HarnessLoad> = {}): HarnessLoad {
  return {
    loops: new Set(["claude"]),
    capacity: 10,
    sessions,
    alone: false,
    keptFree: false,
    leaving: false,
    ...more,
  };
}
const plain = { loop: "claude", silentDeaths: 0, barrenDeaths: 0 };
const suspect = { loop: "claude", silentDeaths: 2, barrenDeaths: 2 };

describe("which harness takes a session", () => {
  test("one that has the loop and room, the emptiest by share of its capacity", () => {
    const half = harness(5);
    const small = harness(1, { capacity: 1 });
    const large = harness(20, { capacity: 100 });
    expect(choose([half, small, large], plain)).toBe(large);
    expect(choose([small], plain)).toBeUndefined();
    expect(choose([harness(0, { loops: new Set(["other"]) })], plain)).toBeUndefined();
    expect(choose([harness(0, { leaving: true })], plain)).toBeUndefined();
  });

  test("a session that killed two harnesses gets only an empty one, and then nothing joins it (E4)", () => {
    expect(canTake(harness(1), suspect)).toBe(false);
    expect(canTake(harness(0), suspect)).toBe(true);
    expect(canTake(harness(1, { alone: true }), plain)).toBe(false);
  });

  test("one of several busy harnesses is emptied for it, never the only one (E4)", () => {
    const [busy, busier] = [harness(1), harness(2)];
    expect(chooseToEmpty([busier, busy], suspect)).toBe(busy);
    expect(chooseToEmpty([busy], suspect)).toBeUndefined();
    expect(chooseToEmpty([busier, harness(1, { keptFree: true })], suspect)).toBeUndefined();
    const emptying = harness(0, { keptFree: true });
    expect([canTake(emptying, plain), canTake(emptying, suspect)]).toEqual([false, true]);
  });

  test("deaths that left events count too, only more slowly (E4)", () => {
    const deaths = [0, 3, 4, 5].map((barrenDeaths) => ({ silentDeaths: 0, barrenDeaths }));
    expect(deaths.map(mustRunAlone)).toEqual([false, false, true, true]);
    expect(deaths.map(isPoison)).toEqual([false, false, false, true]);
  });

  test("room is where a harness has the loop, serves the workspace and takes sessions", () => {
    const of = (workspaceId: string | undefined, sessions: number, more: Partial<HarnessLoad> = {}) => ({
      ...harness(sessions, more),
      workspaceId,
    });
    const harnesses = [
      of(undefined, 1),
      of(undefined, 2),
      of(undefined, 10, { loops: new Set(["other"]) }),
      of("wrkspc_1", 0, { loops: new Set(["claude", "other"]) }),
      of("wrkspc_2", 0, { keptFree: true }),
    ];
    expect(roomsOf(harnesses)).toEqual([
      { loop: "claude", workspaceId: undefined },
      { loop: "claude", workspaceId: "wrkspc_1" },
      { loop: "other", workspaceId: "wrkspc_1" },
    ]);
  });
});
