import { expect, test } from "vitest";
import { childSettings } from "./programs.ts";

const NOTHING = { variables: {}, secrets: {} };
const INHERITED = {
  PATH: "/bin",
  HOME: "/home/u",
  SHELL: "/bin/sh",
  AWS_SECRET_ACCESS_KEY: "aws",
  ANTHROPIC_API_KEY: "sk-model",
  ANTHROPIC_BASE_URL: "http://gateway",
  TENDON_MODEL: "m",
  TENDON_API_KEY: "tk_admin_x",
  TENDON_DATABASE_URL: "postgres://u:p@h/d",
};

test("the model key goes to the harness alone, and as a secret (S2, S3)", () => {
  const { variables, secrets } = childSettings("harness", INHERITED, NOTHING);
  expect(secrets).toEqual({ ANTHROPIC_API_KEY: "sk-model" });
  expect(variables).toEqual({
    PATH: "/bin",
    HOME: "/home/u",
    ANTHROPIC_BASE_URL: "http://gateway",
    TENDON_MODEL: "m",
  });
  for (const program of ["server", "mcp-proxy", "hand-agent"] as const) {
    expect(JSON.stringify(childSettings(program, INHERITED, NOTHING))).not.toMatch(/sk-model|aws|tk_admin/);
  }
});

test("a database URL is a secret of the server", () => {
  const { variables, secrets } = childSettings("server", INHERITED, NOTHING);
  expect(secrets).toEqual({ TENDON_DATABASE_URL: "postgres://u:p@h/d" });
  expect(variables).not.toHaveProperty("TENDON_DATABASE_URL");
});

test("the file form of a secret is passed on as it is", () => {
  const { variables, secrets } = childSettings("harness", { ANTHROPIC_API_KEY_FILE: "/run/key" }, NOTHING);
  expect(variables).toEqual({ ANTHROPIC_API_KEY_FILE: "/run/key" });
  expect(secrets).toEqual({});
});

test("what the launcher gives wins over both forms of what it inherited", () => {
  const inherited = { TENDON_HARNESS_KEY: "old", TENDON_HARNESS_KEY_FILE: "/old" };
  const given = { variables: { TENDON_HARNESS_KEY_FILE: "/data/harness.key" }, secrets: {} };
  expect(childSettings("harness", inherited, given)).toEqual(given);
  const asSecret = { variables: {}, secrets: { TENDON_HARNESS_KEY: "new" } };
  expect(childSettings("harness", inherited, asSecret)).toEqual(asSecret);
});
