import { describe, expect, test } from "vitest";
import type { LockedWork, WorkCaller } from "../store/work.ts";
import { acceptance, beatOf, callerOf, NO_HEARTBEAT, stopOf } from "./rules.ts";

const TTL_MS = 90_000;
const OPERATOR: WorkCaller = { kind: "operator" };
const TOKEN: WorkCaller = { kind: "claim", workId: "work_1", claim: 1 };
const KEY: WorkCaller = { kind: "key", environmentKeyId: "envkey_1" };

function item(facts: Partial<LockedWork>): LockedWork {
  return {
    workId: "work_1",
    workspaceId: "wrkspc_1",
    environmentId: "env_1",
    sessionId: "sesn_1",
    state: "active",
    metadata: {},
    createdAt: new Date(0),
    acknowledgedAt: undefined,
    startedAt: undefined,
    latestHeartbeatAt: undefined,
    stopRequestedAt: undefined,
    stoppedAt: undefined,
    fencedClaim: 0,
    holderClaim: 1,
    callerClaim: 1,
    lastHeartbeat: "b",
    previousHeartbeat: "a",
    ttlMs: TTL_MS,
    ...facts,
  };
}

const beat = (facts: Partial<LockedWork>, expected: string, ttlMs = 0) =>
  beatOf(item(facts), { expected, ttlMs }, TTL_MS);
const refused = expect.objectContaining({ reason: "HEARTBEAT_PRECONDITION_FAILED" });

describe("a heartbeat", () => {
  test("is taken when it expects the newest one; the first expects none", () => {
    expect(beat({}, "b")).toEqual({ kind: "new", claim: 1, ttlMs: TTL_MS });
    const first = { state: "starting", holderClaim: undefined, lastHeartbeat: undefined } as const;
    expect(beat(first, NO_HEARTBEAT)).toMatchObject({ kind: "new" });
    expect(() => beat(first, "b")).toThrow(refused);
    expect(() => beat({}, NO_HEARTBEAT)).toThrow(refused);
    expect(() => beat({}, "")).toThrow(refused);
  });

  test("that is sent again, because its answer was lost, is taken from the same holder, also the first one", () => {
    expect(beat({}, "a")).toEqual({ kind: "repeated", ttlMs: TTL_MS });
    expect(beat({ previousHeartbeat: undefined }, NO_HEARTBEAT)).toMatchObject({ kind: "repeated" });
    expect(() => beat({ callerClaim: 2 }, "a")).toThrow(refused);
  });

  test("of a stale holder is refused whatever it expects", () => {
    expect(() => beat({ holderClaim: 2 }, "b")).toThrow(refused);
    expect(() => beat({ holderClaim: undefined, state: "starting", fencedClaim: 1 }, NO_HEARTBEAT)).toThrow(
      refused,
    );
    expect(() => beat({ state: "queued" }, "b")).toThrow(refused);
    expect(() => beat({ callerClaim: undefined }, "b")).toThrow(refused);
    expect(() => beat({ state: "stopping", holderClaim: 2 }, "b")).toThrow(refused);
  });

  test("keeps nothing of an item that stops, and compares nothing", () => {
    expect(beat({ state: "stopping" }, "other")).toBeUndefined();
    expect(beat({ state: "stopped", holderClaim: 2, fencedClaim: 2 }, "other")).toBeUndefined();
  });

  test("may want a shorter lease than the server's, and no longer one", () => {
    expect(beat({}, "b", 5_000)).toMatchObject({ ttlMs: 5_000 });
    expect(beat({}, "b", 10)).toMatchObject({ ttlMs: 1_000 });
    expect(beat({}, "b", 600_000)).toMatchObject({ ttlMs: TTL_MS });
  });
});

describe("an acknowledgement", () => {
  const fresh = { state: "queued", holderClaim: undefined, lastHeartbeat: undefined } as const;

  test("is taken once, and repeated before the first heartbeat changes nothing", () => {
    expect(acceptance(item(fresh), KEY)).toBe(true);
    expect(acceptance(item({ ...fresh, state: "starting" }), KEY)).toBe(false);
    for (const state of ["active", "stopping", "stopped"] as const) {
      expect(() => acceptance(item({ state }), KEY)).toThrow(
        expect.objectContaining({ reason: "WORK_NOT_QUEUED" }),
      );
    }
  });

  test("by the token of someone who has lost the item is refused", () => {
    const lost = item({ ...fresh, fencedClaim: 1 });
    expect(() => acceptance(lost, TOKEN)).toThrow(expect.objectContaining({ reason: "WORK_NOT_HELD" }));
  });
});

describe("a stop", () => {
  const stop = (facts: Partial<LockedWork>, caller: WorkCaller, force = false) =>
    stopOf(item(facts), caller, force).kind;

  test("by an operator lets the worker know first, unless it is forced or there is no worker", () => {
    const operator = { callerClaim: undefined };
    expect(stop(operator, OPERATOR)).toBe("stopping");
    expect(stop(operator, OPERATOR, true)).toBe("stopped");
    expect(stop({ ...operator, state: "queued", holderClaim: undefined }, OPERATOR)).toBe("stopped");
    expect(stop(operator, KEY)).toBe("stopping");
  });

  test("by the holder's token is at once", () => {
    expect(stop({}, TOKEN)).toBe("stopped");
    expect(stop({ state: "stopping" }, TOKEN, true)).toBe("stopped");
  });

  test("of a stale holder touches nothing, and of what is stopped neither", () => {
    const notHeld = expect.objectContaining({ reason: "WORK_NOT_HELD" });
    expect(() => stop({ holderClaim: 2 }, TOKEN, true)).toThrow(notHeld);
    expect(() => stop({ holderClaim: 2 }, KEY, true)).toThrow(notHeld);
    expect(() => stop({ state: "queued", holderClaim: undefined, fencedClaim: 1 }, TOKEN, true)).toThrow(
      notHeld,
    );
    const stopped = expect.objectContaining({ reason: "WORK_STOPPED" });
    expect(() => stop({ state: "stopped" }, OPERATOR, true)).toThrow(stopped);
  });
});

test("keys speak for what they were given, tokens for their claim, everybody else is an operator", () => {
  const place = { workspaceId: "wrkspc_1", environmentId: "env_1" };
  expect(callerOf({ kind: "worker", keyId: "envkey_1", ...place })).toEqual(KEY);
  const token = {
    kind: "work_item",
    workId: "work_1",
    claim: 1,
    isLost: false,
    sessionId: "sesn_1",
    ...place,
  } as const;
  expect(callerOf(token)).toEqual(TOKEN);
  expect(callerOf({ kind: "client", keyId: "apikey_1", workspaceId: "wrkspc_1" })).toEqual(OPERATOR);
});
