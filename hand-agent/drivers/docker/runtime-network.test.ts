import { expect, test } from "vitest";
import { networkOf } from "./runtime-network.ts";

test("a runtime's network is the namespace's only where that is certain", () => {
  const runsc = (...runtimeArgs: string[]) => networkOf({ path: "/usr/bin/runsc", runtimeArgs });
  expect(runsc("--platform=ptrace", "--network=host")).toBe("passed_on");
  expect(runsc("-network=host")).toBe("passed_on");
  expect(runsc("--network=host", "--network=none")).toBe("own");
  expect(runsc("--network=sandbox")).toBe("own");
  expect(runsc()).toBe("own");
  expect(networkOf({ path: "/opt/kata-runtime", runtimeArgs: ["--network=host"] })).toBe("own");
  expect(networkOf({ path: "/usr/sbin/runc", runtimeArgs: null })).toBe("namespace");
  expect(networkOf({})).toBe("own");
  expect(networkOf(undefined)).toBe("own");
});
