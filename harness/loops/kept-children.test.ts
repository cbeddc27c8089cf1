import { describe, expect, it } from "vitest";
import { type KeptChild, KeptChildren } from "./kept-children.ts";

class Child implements KeptChild {
  isOver = false;
  async end() {
    this.isOver = true;
  }
}

function rig(max: number) {
  const children = new KeptChildren<Child>(max);
  const made: Child[] = [];
  const start = async () => {
    const child = new Child();
    made.push(child);
    return child;
  };
  const never = new AbortController().signal;
  const run = <T>(held: AbortController, step: (child: Child) => Promise<T>, signal = never) =>
    children.run(held.signal, signal, start, step);
  return { children, made, run };
}
const self = async (child: Child) => child;

describe("children that loops keep", () => {
  it("stay from step to step of one lease and end with it", async () => {
    const { children, run } = rig(2);
    const held = new AbortController();
    const first = await run(held, self);
    expect(await run(held, self)).toBe(first);
    expect(first.isOver).toBe(false);
    held.abort();
    expect(first.isOver).toBe(true);
    await Promise.resolve();
    expect(children.size).toBe(0);
  });

  it("are ended and made anew after a step that failed, was aborted, or ended them", async () => {
    const { made, run } = rig(2);
    const held = new AbortController();
    await expect(run(held, () => Promise.reject(new Error("bad")))).rejects.toThrow("bad");
    const stop = new AbortController();
    const aborted = run(
      held,
      (child) =>
        new Promise<void>((resolve) => {
          stop.abort();
          resolve(child.end());
        }),
      stop.signal,
    );
    await aborted.catch(() => {});
    await run(held, (child) => child.end());
    const last = await run(held, self);
    expect(made.map(({ isOver }) => isOver)).toEqual([true, true, true, false]);
    expect(last).toBe(made[3]);
  });

  it("make room: who waited longest for its next step goes first", async () => {
    const { children, made, run } = rig(2);
    const leases = [0, 1, 2].map(() => new AbortController());
    await run(leases[0]!, self);
    await run(leases[1]!, self);
    await run(leases[0]!, self);
    await run(leases[2]!, self);
    expect(made.map(({ isOver }) => isOver)).toEqual([false, true, false]);
    expect(children.size).toBe(2);
  });

  it("are waited for when all are busy, and no longer than the step wants", async () => {
    const { made, run } = rig(1);
    const [a, b, c] = [0, 1, 2].map(() => new AbortController()) as [
      AbortController,
      AbortController,
      AbortController,
    ];
    let finish = () => {};
    const busy = run(
      a,
      () =>
        new Promise<void>((resolve) => {
          finish = resolve;
        }),
    );
    const stop = new AbortController();
    const impatient = run(b, self, stop.signal);
    const patient = run(c, self);
    stop.abort(new Error("interrupted"));
    await expect(impatient).rejects.toThrow("interrupted");
    expect(made).toHaveLength(1);
    finish();
    await busy;
    expect(await patient).toBe(made[1]);
  });

  it("that cannot be started leave their place to others", async () => {
    const children = new KeptChildren<Child>(1);
    const never = new AbortController().signal;
    const fails = () => Promise.reject(new Error("no memory"));
    await expect(children.run(new AbortController().signal, never, fails, self)).rejects.toThrow("no memory");
    await children.run(new AbortController().signal, never, async () => new Child(), self);
    expect(children.size).toBe(1);
  });
});
