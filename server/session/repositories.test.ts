import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import type { AttachedGitRepository } from "../../proto/gen/tendon/v1/git_pb.js";
import { SessionResourceInputSchema } from "../../proto/gen/tendon/v1/session_pb.js";
import { attachRepositories } from "./repositories.ts";

interface Input {
  url?: string;
  mountPath?: string;
  slot?: string;
  checkout?: { at: { case: "branch" | "tag"; value: string } };
}

function attach(inputs: Input[], slots: string[] = []): AttachedGitRepository[] {
  const resources = inputs.map(({ url = "https://git.example/a/repo.git", ...rest }) =>
    create(SessionResourceInputSchema, { kind: { case: "gitRepository", value: { url, ...rest } } }),
  );
  return [...attachRepositories(resources, slots).values()].map(
    ({ kind }) => kind?.value as AttachedGitRepository,
  );
}

const refusal = (...inputs: Input[]) => {
  try {
    attach(inputs);
  } catch (error) {
    return (error as { metadata: { field: string } }).metadata.field;
  }
  return undefined;
};

test("a repository is mounted below /workspace, by its name where nothing is said", () => {
  const paths = (...inputs: Input[]) => attach(inputs).map(({ mountPath }) => mountPath);
  expect(paths({})).toEqual(["/workspace/repo"]);
  expect(paths({ url: "https://git.example:8443/x/y/my.tool/" })).toEqual(["/workspace/my.tool"]);
  expect(paths({ mountPath: "/workspace/src/it/" }, { mountPath: "lib/other" })).toEqual([
    "/workspace/src/it",
    "/workspace/lib/other",
  ]);
  expect(attach([{}, { slot: "phone" }], ["phone"])).toHaveLength(2);
});

test("a path that leaves /workspace, or a repository within another, is refused with its field", () => {
  const field = "resources[0].git_repository.mount_path";
  for (const mountPath of [
    "/etc/x",
    "/workspace",
    "/workspace/..",
    "a/../b",
    "/workspacex/a",
    "a//b",
    "a/.git",
  ])
    expect([mountPath, refusal({ mountPath })]).toEqual([mountPath, field]);
  expect(refusal({ url: "https://git.example/a/.hidden" })).toBe(field);
  expect(refusal({ mountPath: "a" }, { mountPath: "a/b" })).toBe("resources[1].git_repository.mount_path");
  expect(refusal({}, {})).toBe("resources[1].git_repository.mount_path");
});

test("what is no repository's URL, no slot of the session and no name of a branch is refused", () => {
  for (const url of [
    "https://user@git.example/a",
    "https://git.example/",
    "https://git.example/a?b",
    "http://git.example/a",
    "https://git.example/a#b",
    "https://git.example/a b",
  ])
    expect([url, refusal({ url })]).toEqual([url, "resources[0].git_repository.url"]);
  expect(refusal({ slot: "none" })).toBe("resources[0].git_repository.slot");
  for (const value of [
    "-x",
    "a..b",
    "a b",
    "a.lock",
    "a/",
    "/a",
    ".a",
    "a/.b",
    "@",
    "a~1",
    "a:b",
    "a@{1}",
    "a*",
  ])
    expect([value, refusal({ checkout: { at: { case: "branch", value } } })]).toEqual([
      value,
      "resources[0].git_repository.checkout.branch",
    ]);
  expect(refusal({ checkout: { at: { case: "tag", value: "v1.0/é" } } })).toBeUndefined();
  expect(refusal(...Array.from({ length: 17 }, (_, index) => ({ mountPath: `r${index}` })))).toBe(
    "resources[16].git_repository",
  );
});
