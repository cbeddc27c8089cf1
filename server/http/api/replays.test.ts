import { expect, test } from "vitest";
import { FakeClock } from "../../../test/kit/fake-clock.ts";
import { Replays } from "./replays.ts";

const head = { credential: "key", method: "POST", url: "/v1/agents", isRepeat: false };
const repeat = { ...head, isRepeat: true };

function rig() {
  const clock = new FakeClock();
  const replays = new Replays(clock);
  let made = 0;
  /** The text of the answer: a number that grows with each that is made. */
  const ask = async (asked = head, body = "{}", end = `${made + 1}`) => {
    const attempt = replays.begin(asked);
    const first = await attempt.first(body);
    if (first !== undefined) return first.text;
    made += 1;
    attempt.end({ status: 200, text: end });
    return end;
  };
  return { clock, replays, ask };
}

test("a repeat of the same bytes by the same key gets the first answer, for a minute", async () => {
  const { clock, ask } = rig();
  expect(await ask()).toBe("1");
  expect(await ask(repeat)).toBe("1");
  expect(await ask({ ...repeat, credential: "other" })).toBe("2");
  expect(await ask({ ...repeat, url: "/v1/vaults" })).toBe("3");
  expect(await ask(repeat, "{ }")).toBe("4");
  await clock.advance(59_999);
  expect(await ask(repeat)).toBe("1");
  await clock.advance(1);
  expect(await ask(repeat)).toBe("5");
});

test("repeats wait for the first that is still being answered, and one of them runs where that fails", async () => {
  const { replays } = rig();
  const [first, second, third] = [head, repeat, repeat].map((asked) => replays.begin(asked));
  expect(await first!.first("{}")).toBeUndefined();
  const [one, two] = [second!.first("{}"), third!.first("{}")];
  first!.end(undefined);
  expect(await one).toBeUndefined();
  second!.end({ status: 200, text: "made" });
  expect((await two)?.text).toBe("made");
});

test("a request that its own repeat has overtaken gets the repeat's answer; one that came later makes its own", async () => {
  const { replays, ask } = rig();
  const slow = replays.begin(head);
  expect(await ask(repeat)).toBe("1");
  expect((await slow.first("{}"))?.text).toBe("1");
  expect(await ask(head)).toBe("2");
});

test("an answer as large as a body may be is kept; of what is more than there is room for the oldest goes, and after a minute all", async () => {
  const { clock, ask } = rig();
  const large = (n: number) => String(n).repeat(33 * 1024 * 1024);
  const kept = async (body: string) => (await ask(repeat, body, "again"))[0];
  await ask(head, "1", large(1));
  expect(await kept("1")).toBe("1");
  await ask(head, "2", large(2));
  expect([await kept("2"), await kept("1")]).toEqual(["2", "a"]);
  await clock.advance(60_000);
  expect(clock.waiting).toBe(0);
});
