import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { GitRepositorySchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import { withGitVariables } from "./git-variables.ts";

const repository = (url: string) => create(GitRepositorySchema, { url });

test("git's settings for each host stand behind those that the environment has", () => {
  const env = { A: "b", GIT_CONFIG_COUNT: "1", GIT_CONFIG_KEY_0: "user.name", GIT_CONFIG_VALUE_0: "Someone" };
  const repositories = ["https://Git.example/a", "https://git.example/b", "https://other.example:8443/c"];
  const key = "url.http://127.0.0.1:7480/git/git.example/.insteadOf";
  expect(withGitVariables(env, repositories.map(repository))).toEqual({
    ...env,
    GIT_CONFIG_KEY_1: key,
    GIT_CONFIG_VALUE_1: "https://git.example/",
    GIT_CONFIG_KEY_2: key,
    GIT_CONFIG_VALUE_2: "git@git.example:",
    GIT_CONFIG_KEY_3: key,
    GIT_CONFIG_VALUE_3: "ssh://git@git.example/",
    GIT_CONFIG_KEY_4: "url.http://127.0.0.1:7480/git/other.example:8443/.insteadOf",
    GIT_CONFIG_VALUE_4: "https://other.example:8443/",
    GIT_CONFIG_COUNT: "5",
  });
});
