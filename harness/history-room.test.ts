import { create } from "@bufbuild/protobuf";
import { beforeEach, describe, expect, it } from "vitest";
import { EventSchema } from "../proto/gen/tendon/v1/event_pb.js";
import { FakeClock } from "../test/kit/fake-clock.ts";
import { HeldHistory } from "./held-history.ts";
import { HistoryRoom, type HistoryShare, HistoryTooLarge, NoRoom } from "./history-room.ts";
import { bytesOf, chooseToLeave, OWN_BYTES, TURN_MS } from "./history-room-rules.ts";

const MIB = 1024 * 1024;
const alive = new AbortController().signal;

describe("who makes room", () => {
  const holder = (bytes: number, more: object = {}) => ({
    bytes,
    heldMs: TURN_MS,
    waits: false,
    leaves: false,
    ...more,
  });

  it("is as few as are enough: the largest of those that have had their turn", () => {
    const [small, large, newer] = [holder(10), holder(30), holder(90, { heldMs: TURN_MS - 1 })];
    expect(chooseToLeave(25, [small, large, newer])).toEqual([large]);
    expect(chooseToLeave(35, [small, large, newer])).toEqual([large, small]);
    expect(chooseToLeave(500, [small, large, newer])).toEqual([large, small]);
  });

  it("is first who waits and so gets nowhere with what it holds, and nobody while those that leave are enough", () => {
    const waiting = holder(10, { heldMs: 0, waits: true });
    expect(chooseToLeave(5, [holder(30), waiting])).toEqual([waiting]);
    expect(chooseToLeave(5, [holder(30), holder(5, { leaves: true })])).toEqual([]);
    expect(chooseToLeave(6, [holder(30), holder(5, { leaves: true })])).toHaveLength(1);
    expect(chooseToLeave(1, [holder(0)])).toEqual([]);
  });
});

it("a text takes a byte for each character, and two where one of them is beyond ASCII", () => {
  expect(bytesOf({ payload: "12345", internal: "ab" })).toBe(7);
  expect(bytesOf({ payload: "1234é", internal: "" })).toBe(10);
});

describe("the room for histories", () => {
  let clock: FakeClock;
  let room: HistoryRoom;
  let left: string[];

  beforeEach(() => {
    clock = new FakeClock();
    room = new HistoryRoom(100 * MIB, clock);
    left = [];
  });

  const enter = (id: string) => room.enter(id, () => left.push(id));
  /** Reads so much of its history and keeps it. */
  const load = (share: HistoryShare, mib: number) =>
    share.read(mib * MIB + OWN_BYTES, alive, async () => void share.holds(mib * MIB + OWN_BYTES));
  /** What has become of it by now. */
  const stateOf = async (promise: Promise<unknown>) => {
    const outcome = promise.then(
      () => "done",
      (error: Error) => error.name,
    );
    for (let i = 0; i < 20; i++) await Promise.resolve();
    return Promise.race([outcome, Promise.resolve("waits")]);
  };

  it("has what fits at once, and the rest in the order in which it waits", async () => {
    const [a, b, c, d] = ["a", "b", "c", "d"].map(enter) as [
      HistoryShare,
      HistoryShare,
      HistoryShare,
      HistoryShare,
    ];
    await load(a, 60);
    expect(room.takenBytes).toBe(60 * MIB);
    const large = load(b, 90);
    const small = load(c, 10);
    expect([await stateOf(large), await stateOf(small), room.waiting]).toEqual(["waits", "waits", 2]);
    // What every session has of its own is not asked for.
    expect(await stateOf(d.read(OWN_BYTES, alive, async () => {}))).toBe("done");
    a.close();
    expect([await stateOf(large), await stateOf(small)]).toEqual(["done", "done"]);
    expect(room.takenBytes).toBe(100 * MIB);
    expect(left).toEqual([]);
  });

  it("says at once that a history is larger than all there is", async () => {
    const share = enter("a");
    await expect(load(share, 101)).rejects.toThrow(HistoryTooLarge);
    await load(share, 60);
    await expect(share.read(41 * MIB, alive, async () => {})).rejects.toThrow(HistoryTooLarge);
    expect(share.holds(100 * MIB + OWN_BYTES)).toBe(true);
    expect(share.holds(100 * MIB + OWN_BYTES + 1)).toBe(false);
  });

  it("is made by those that have had their turn, and they come before those that wait since later", async () => {
    const [a, b] = [enter("a"), enter("b")];
    await load(a, 80);
    const waiting = load(b, 50);
    await clock.advance(TURN_MS - 1_000);
    expect(left).toEqual([]);
    await clock.advance(2_000);
    expect(left).toEqual(["a"]);
    // It asks for nothing more meanwhile.
    await expect(a.read(MIB, alive, async () => {})).rejects.toThrow(NoRoom);
    a.close();
    expect(await stateOf(waiting)).toBe("done");
    await clock.advance(1_000);
    const late = load(enter("c"), 70);
    const again = load(enter("a"), 80);
    b.close();
    expect([await stateOf(late), await stateOf(again)]).toEqual(["waits", "done"]);
  });

  it("is made by the later of two that hold parts of it and wait for each other", async () => {
    const [a, b] = [enter("a"), enter("b")];
    await load(a, 50);
    await load(b, 50);
    const first = a.read(30 * MIB, alive, async () => {});
    await clock.advance(1);
    const second = b.read(30 * MIB, alive, async () => {});
    await clock.advance(5_000);
    expect(await stateOf(second)).toBe("NoRoom");
    b.close();
    expect([await stateOf(first), left]).toEqual(["done", ["b"]]);
  });

  it("is given back, unless it is had in time, and whoever comes back is still before the others", async () => {
    const [a, b] = [enter("a"), enter("b")];
    await load(a, 80);
    const waiting = load(b, 50);
    await clock.advance(60_000);
    const other = load(enter("c"), 50);
    await clock.advance(60_000);
    expect([await stateOf(waiting), await stateOf(other), left]).toEqual(["NoRoom", "waits", ["a", "b"]]);
    b.close();
    const again = load(enter("b"), 50);
    a.close();
    expect([await stateOf(again), await stateOf(other)]).toEqual(["done", "done"]);
  });

  it("is not kept for whoever waited long ago", async () => {
    const a = enter("a");
    await load(a, 80);
    const b = enter("b");
    const waiting = load(b, 50);
    await clock.advance(120_000);
    expect(await stateOf(waiting)).toBe("NoRoom");
    for (const share of [a, b]) share.close();
    await clock.advance(10 * 60_000);
    const holds = enter("d");
    await load(holds, 80);
    const first = load(enter("c"), 50);
    await clock.advance(1);
    const again = load(enter("b"), 60);
    holds.close();
    expect([await stateOf(first), await stateOf(again)]).toEqual(["done", "waits"]);
  });

  it("is read by few at a time, and what ends while it waits is forgotten", async () => {
    const ends: (() => void)[] = [];
    const reads = [1, 2, 3, 4, 5, 6].map((n) =>
      enter(`${n}`).read(5 * MIB, alive, () => new Promise<void>((resolve) => ends.push(resolve))),
    );
    await stateOf(reads[5]!);
    expect(ends).toHaveLength(4);
    ends[0]!();
    expect(await stateOf(reads[0]!)).toBe("done");
    expect(ends).toHaveLength(5);
    const gone = new AbortController();
    const last = enter("7").read(5 * MIB, gone.signal, async () => {});
    gone.abort(new Error("over"));
    expect([await stateOf(last), room.waiting]).toEqual(["Error", 1]);
    for (const end of ends.splice(0)) end();
    expect(await stateOf(reads[4]!)).toBe("done");
    ends.at(-1)!();
    expect([await stateOf(reads[5]!), room.takenBytes, room.waiting]).toEqual(["done", 0, 0]);
  });

  it("keeps of a history that outgrows it nothing at all", () => {
    const share = enter("a");
    const history = new HeldHistory(share, undefined);
    const large = create(EventSchema, { type: "user.message", payload: "x".repeat(60 * MIB) });
    history.add(large);
    expect([history.events.length, history.isTooLarge]).toEqual([1, false]);
    history.add(large);
    history.add(large);
    expect([history.events.length, history.isTooLarge, room.takenBytes]).toEqual([0, true, 0]);
  });
});
