import { expect, test } from "vitest";
import { Fields } from "./fields.ts";
import { metadataPatch } from "./metadata.ts";

const pairs = (count: number, value: unknown) =>
  Object.fromEntries(Array.from({ length: count }, (_, at) => [`k${at}`, value]));

test("pairs are counted before any is looked at", () => {
  expect(Object.keys(metadataPatch(new Fields({ metadata: pairs(64, null) }, "")))).toHaveLength(64);
  // Their values are wrong, too, and nobody has come to that.
  expect(() => metadataPatch(new Fields({ metadata: pairs(65, 7) }, ""))).toThrow(
    /^metadata: must have at most 64 entries/,
  );
  expect(() => metadataPatch(new Fields({ metadata: pairs(1, 7) }, ""))).toThrow(
    /^metadata\.k0: must be a string/,
  );
});
