import { expect, test } from "vitest";
import { TendonError } from "./errors.ts";
import { Turns } from "./turns.ts";

/** Something that is written only by whoever read what is there. */
function versioned() {
  let version = 0;
  return {
    get version() {
      return version;
    },
    async change(): Promise<number | undefined> {
      const read = version;
      await new Promise((resolve) => setImmediate(resolve));
      if (read !== version) return undefined;
      version += 1;
      return version;
    },
  };
}

test("changes of one thing at once are all made, and each once", async () => {
  const thing = versioned();
  const turns = new Turns("thing");
  const made = await Promise.all(Array.from({ length: 200 }, () => turns.untilDone("a", thing.change)));
  expect(new Set(made).size).toBe(200);
  expect(thing.version).toBe(200);
});

test("who waits for one thing does not wait for another, and what fails holds up nobody", async () => {
  const turns = new Turns("thing");
  let tries = 0;
  const fails = turns.untilDone("a", async () => {
    tries += 1;
    if (tries > 1) throw new Error("broken");
    return undefined;
  });
  const hangs = turns.untilDone("a", async () => (tries > 1 ? "after" : undefined));
  await expect(fails).rejects.toThrow("broken");
  expect(await hangs).toBe("after");
  expect(await turns.untilDone("b", async () => "other")).toBe("other");
});

test("who is always too late is told so after a bound, as with a version that is old", async () => {
  const turns = new Turns("thing");
  let tries = 0;
  const late = turns.untilDone("a", async () => {
    tries += 1;
    throw new TendonError("VERSION_MISMATCH", "another was faster");
  });
  await expect(late).rejects.toMatchObject({ reason: "VERSION_MISMATCH", metadata: { id: "a" } });
  expect(tries).toBe(50);
});

test("no more than a thousand wait for one thing", async () => {
  const turns = new Turns("thing");
  let letGo = () => {};
  const gate = new Promise<void>((resolve) => {
    letGo = resolve;
  });
  const attempt = () => {
    let isFirst = true;
    return async () => {
      if (isFirst) {
        isFirst = false;
        return undefined;
      }
      await gate;
      return "done";
    };
  };
  const waiting = Array.from({ length: 1_000 }, () => turns.untilDone("a", attempt()));
  await expect(turns.untilDone("a", attempt())).rejects.toMatchObject({ reason: "RATE_LIMITED" });
  letGo();
  expect(new Set(await Promise.all(waiting))).toEqual(new Set(["done"]));
});
