import { afterEach, expect, test } from "vitest";
import { armFailpoints, failpoint } from "./failpoint.ts";
import { readSettings, SettingsError } from "./settings/settings.ts";
import { programSettings } from "./settings/shared-settings.ts";

const warnings: object[] = [];
const log = { warn: (facts: object) => void warnings.push(facts) } as never;

afterEach(() => {
  armFailpoints(undefined, log);
  warnings.length = 0;
});

test("a point does nothing until its program is told so, and the program warns of it", () => {
  failpoint("agent.journalled");
  armFailpoints(undefined, log);
  failpoint("agent.journalled");
  expect(warnings).toEqual([]);
  armFailpoints("agent.journalled=error", log);
  expect(() => failpoint("agent.journalled")).toThrow("failpoint agent.journalled");
  expect(warnings).toEqual([{ failpoints: "agent.journalled=error" }]);
});

test("each entry acts once, at the passing that it names", () => {
  armFailpoints("server.bound=error@2,server.result_stored=error,server.bound=error@4", log);
  const thrown = [1, 2, 3, 4, 5].filter(() => {
    try {
      failpoint("server.bound");
      return false;
    } catch {
      return true;
    }
  });
  expect(thrown).toEqual([2, 4]);
  expect(() => failpoint("server.result_stored")).toThrow();
});

test.each([
  "agent.nowhere=kill",
  "agent.journalled",
  "agent.journalled=explode",
  "agent.journalled=kill@0",
  "",
])("%j is refused when the program starts", (text) => {
  const read = () =>
    readSettings(programSettings, { TENDON_FAILPOINTS: text || "," }, { knownElsewhere: [] });
  expect(read).toThrow(SettingsError);
  expect(read).toThrow(/TENDON_FAILPOINTS/);
});
