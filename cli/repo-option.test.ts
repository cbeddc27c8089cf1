import { expect, test } from "vitest";
import { repositoryInput } from "./repo-option.ts";

const COMMIT = "0123456789abcdef0123456789abcdef01234567";

test.each([
  ["https://h/a/b.git", { url: "https://h/a/b.git", mountPath: "" }],
  [
    "https://h/@a/b#main",
    { url: "https://h/@a/b", mountPath: "", checkout: { at: { case: "branch", value: "main" } } },
  ],
  [
    "https://h/a#tag:v1@src/a",
    { url: "https://h/a", mountPath: "src/a", checkout: { at: { case: "tag", value: "v1" } } },
  ],
  [
    `https://h/a#${COMMIT}`,
    { url: "https://h/a", mountPath: "", checkout: { at: { case: "commit", value: COMMIT } } },
  ],
  ["https://h/a#@src", { url: "https://h/a", mountPath: "src" }],
])("%s", (text, expected) => {
  expect(repositoryInput(text, ["agent/*"])).toEqual({
    kind: { case: "gitRepository", value: { pushBranches: ["agent/*"], ...expected } },
  });
});
