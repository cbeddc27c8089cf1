import { expect, test } from "vitest";
import { gate } from "../../test/kit/execution-stream.ts";
import { PresenceRows } from "./presence-rows.ts";

/** Work that ends when it is told to. */
function held(done: string[], what: string) {
  const [begun, end] = [gate<void>(), gate<void>()];
  const work = async () => {
    done.push(`begins to ${what}`);
    begun.open();
    await end.opened;
    done.push(what);
  };
  return { work, begun: begun.opened, letGo: () => end.open() };
}

test("the end of an old connection leaves the row of a newer one, also of one that is just being written (H3)", async () => {
  const rows = new PresenceRows();
  const [old, newer] = [{}, {}];
  const done: string[] = [];
  await rows.came("proxy_1", old, async () => void done.push("write old"));
  const writing = held(done, "write newer");
  const came = rows.came("proxy_1", newer, writing.work);
  await rows.gone("proxy_1", old, async () => void done.push("remove old"));
  writing.letGo();
  await came;
  expect(done).toEqual(["write old", "begins to write newer", "write newer"]);
  await rows.gone("proxy_1", newer, async () => void done.push("remove newer"));
  expect(done.at(-1)).toBe("remove newer");
});

test("what is being removed is removed before a newer connection writes its row, and one that fails can come again (H3)", async () => {
  const rows = new PresenceRows();
  const [old, newer] = [{}, {}];
  const done: string[] = [];
  await rows.came("proxy_1", old, async () => {});
  const removing = held(done, "remove old");
  const gone = rows.gone("proxy_1", old, removing.work);
  await removing.begun;
  const came = rows.came("proxy_1", newer, async () => {
    done.push("write newer");
    throw new Error("no database");
  });
  removing.letGo();
  await gone;
  await expect(came).rejects.toThrow("no database");
  expect(done).toEqual(["begins to remove old", "remove old", "write newer"]);
  await rows.gone("proxy_1", newer, async () => {});
  await rows.came("proxy_1", newer, async () => void done.push("again"));
  expect(done.at(-1)).toBe("again");
});

test("a row is not left behind because the database was away for a moment", async () => {
  const rows = new PresenceRows();
  const holder = {};
  let tries = 0;
  await rows.came("harness_1", holder, async () => {});
  await rows.gone("harness_1", holder, async () => {
    tries += 1;
    if (tries < 3) throw new Error("no database");
  });
  expect(tries).toBe(3);
});
