import { describe, expect, it } from "vitest";
import { sdkEnvironment } from "./environment.ts";

const model = { apiKey: "k", authToken: undefined, baseUrl: "http://127.0.0.1:1" };
const input = {
  plain: { PATH: "/bin" },
  model,
  proxy: { httpsProxy: undefined, noProxy: undefined },
  maxOutputTokens: 0,
};

describe("the environment of the SDK's program", () => {
  it("has what it needs to ask the model as its only secret, and a home in the scratch directory", () => {
    const environment = sdkEnvironment({ ...input, scratch: "/scratch" });
    expect(environment).toMatchObject({
      PATH: "/bin",
      HOME: "/scratch",
      TMPDIR: "/scratch",
      CLAUDE_CONFIG_DIR: "/scratch/.claude",
      ANTHROPIC_API_KEY: "k",
      ANTHROPIC_BASE_URL: "http://127.0.0.1:1",
    });
    expect(Object.entries(environment).filter(([, value]) => value === "k")).toHaveLength(1);
    expect(Object.keys(environment).filter((name) => name.startsWith("TENDON_"))).toEqual([]);
    expect(environment).not.toHaveProperty("ANTHROPIC_AUTH_TOKEN");
  });

  it("leaves updates, telemetry, retries and summaries of its own off", () => {
    expect(sdkEnvironment({ ...input, scratch: "/s", maxOutputTokens: 7 })).toMatchObject({
      DISABLE_AUTOUPDATER: "1",
      DISABLE_TELEMETRY: "1",
      DISABLE_ERROR_REPORTING: "1",
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
      CLAUDE_CODE_MAX_RETRIES: "0",
      DISABLE_COMPACT: "1",
      CLAUDE_CODE_MAX_OUTPUT_TOKENS: "7",
    });
  });
});
