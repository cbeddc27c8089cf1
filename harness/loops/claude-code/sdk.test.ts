import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { isSdkInstalled, SdkMissing, TESTED_VERSION } from "./sdk.ts";

const read = (path: string) => readFileSync(new URL(`../../../${path}`, import.meta.url), "utf8");

describe("the version of the agent SDK", () => {
  it("that people are told to install is the one that is tested", () => {
    expect(JSON.parse(read("package.json")).devDependencies["@anthropic-ai/claude-agent-sdk"]).toBe(
      TESTED_VERSION,
    );
    expect(read("docs/loops.md")).toContain(`claude-agent-sdk@${TESTED_VERSION}`);
    expect(new SdkMissing().message).toContain(`claude-agent-sdk@${TESTED_VERSION}`);
    expect(isSdkInstalled()).toBe(true);
  });
});
