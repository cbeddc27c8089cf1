import { expect, test } from "vitest";
import { takeOption } from "./programs.ts";

test("an option is taken out of the arguments in both of its forms", () => {
  expect(takeOption(["--url", "u", "--token-file", "f", "--once"], "--token-file")).toEqual({
    value: "f",
    rest: ["--url", "u", "--once"],
  });
  expect(takeOption(["--token-file=f", "--once"], "--token-file")).toEqual({ value: "f", rest: ["--once"] });
  expect(takeOption(["--once"], "--token-file")).toEqual({ value: undefined, rest: ["--once"] });
});

test("an option without its value is refused", () => {
  expect(() => takeOption(["--token-file"], "--token-file")).toThrow("--token-file needs a file");
});
