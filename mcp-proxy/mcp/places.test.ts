import { expect, test } from "vitest";
import { Places } from "./places.ts";

const full = expect.objectContaining({ status: 429 });

test("a session has 64 requests and 8 streams open at one server, and another one is not held up by it", () => {
  const places = new Places();
  for (let i = 0; i < 64; i++) places.take("sesn_1", "a", false);
  for (let i = 0; i < 8; i++) places.take("sesn_1", "a", true);
  expect(() => places.take("sesn_1", "a", false)).toThrow(full);
  expect(() => places.take("sesn_1", "a", true)).toThrow(full);
  places.take("sesn_1", "b", false);
  places.take("sesn_2", "a", false);
});

test("names of servers that there are not make no more room for a session", () => {
  const places = new Places();
  const leave = Array.from({ length: 256 }, (_, i) => places.take("sesn_1", `made up ${i}`, false));
  expect(() => places.take("sesn_1", "one more", false)).toThrow(full);
  // What was refused has taken no place.
  for (const one of leave) one();
  for (let i = 0; i < 64; i++) places.take("sesn_1", "one more", false);
});
