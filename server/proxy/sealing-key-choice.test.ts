import { expect, test } from "vitest";
import { chooseKey } from "./sealing-key-choice.ts";

const key = (keyId: string) => ({ keyId, publicJwk: "{}" });
const [old, now, next] = [key("old"), key("now"), key("next")];

test("secrets are sealed to the newest key that every connected proxy can open with", () => {
  const published = [next, now, old];
  const here = [[now, old]];
  expect(chooseKey({ here, connected: [["now", "old"]], published })).toBe(now);
  // One proxy has the next key already, another replica's has not.
  expect(chooseKey({ here: [[next, now, old]], connected: [["now", "old"]], published })).toBe(now);
  expect(chooseKey({ here: [[next, now, old]], connected: [["next", "now"]], published })).toBe(next);
});

test("with proxies of other replicas alone their lists decide, with none the newest that was published", () => {
  const published = [next, now, old];
  expect(
    chooseKey({
      here: [],
      connected: [
        ["now", "old"],
        ["next", "now"],
      ],
      published,
    }),
  ).toBe(now);
  expect(chooseKey({ here: [], connected: [], published })).toBe(next);
  expect(chooseKey({ here: [], connected: [], published: [] })).toBeUndefined();
});

test("a key that only the table of published ones names is not used while proxies are here", () => {
  const planted = key("planted");
  expect(chooseKey({ here: [[now]], connected: [["now"]], published: [planted, now] })).toBe(now);
  expect(chooseKey({ here: [[now]], connected: [["planted"]], published: [planted, now] })).toBe(now);
});

test("proxies that share no key are still served, by the first one's newest", () => {
  expect(chooseKey({ here: [[now], [old]], connected: [], published: [] })).toBe(now);
});
