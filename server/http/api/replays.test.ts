import { expect, test } from "vitest";
import { FakeClock } from "../../../test/kit/fake-clock.ts";
import { Replays } from "./replays.ts";

const request = { credential: "key", method: "POST", url: "/v1/agents", body: "{}", isRepeat: false };

function counted() {
  let runs = 0;
  return async () => {
    runs += 1;
    return { status: 200, text: String(runs) };
  };
}

test("a repeat of the same bytes by the same key gets the first answer, for a minute", async () => {
  const clock = new FakeClock();
  const replays = new Replays(clock);
  const run = counted();
  expect((await replays.answer(request, run)).text).toBe("1");
  expect((await replays.answer({ ...request, isRepeat: true }, run)).text).toBe("1");
  for (const other of [{ credential: "other" }, { url: "/v1/vaults" }, { body: "{ }" }]) {
    const text = (await replays.answer({ ...request, ...other, isRepeat: true }, run)).text;
    expect(text).not.toBe("1");
  }
  await clock.advance(60_001);
  expect((await replays.answer({ ...request, isRepeat: true }, run)).text).toBe("5");
});

test("a repeat waits for the first that is still being answered, and runs where that fails", async () => {
  const replays = new Replays(new FakeClock());
  let fail: (error: Error) => void = () => {};
  const first = replays.answer(request, () => new Promise((_, reject) => (fail = reject)));
  const repeat = replays.answer({ ...request, isRepeat: true }, counted());
  fail(new Error("broken"));
  await expect(first).rejects.toThrow("broken");
  expect((await repeat).text).toBe("1");
});
