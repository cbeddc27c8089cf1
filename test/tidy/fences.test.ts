import { describe, expect, test } from "vitest";
import { codeOf, sourceFiles } from "./source-tree.ts";

const files = sourceFiles(["kit", "server", "harness", "hand-agent", "mcp-proxy", "cli"]).filter(
  (file) => !file.isTest,
);

function findings(pattern: RegExp, allowed: RegExp): string[] {
  return files
    .filter((file) => !allowed.test(file.path))
    .flatMap((file) =>
      codeOf(file.text)
        .split("\n")
        .filter((line) => pattern.test(line))
        .map((line) => `${file.path}: ${line.trim()}`),
    );
}

describe("fences inside the sources", () => {
  test("the environment is read only where settings are", () => {
    expect(findings(/\bprocess\.env\b/, /\/config\.ts$/)).toEqual([]);
  });

  test("timers and clocks are reached only through kit/clock.ts", () => {
    const timers =
      /\b(setTimeout|setInterval|setImmediate)\s*\(|\bDate\.now\b|\bperformance\.now\b|\bnew Date\(\)|node:timers/;
    // kit/ids.ts names ids by the time of their making.
    expect(findings(timers, /^kit\/(clock|ids)\.ts$/)).toEqual([]);
  });

  test("only main files end the process, by way of kit/program.ts", () => {
    expect(findings(/\bprocess\.exit\s*\(/, /^kit\/program\.ts$/)).toEqual([]);
  });

  test("nothing is printed past the logger but by the command line and its kin", () => {
    expect(findings(/\bconsole\.\w+\(/, /^cli\//)).toEqual([]);
  });

  test("no file is named utils, helpers, common, manager or misc, and all names are kebab-case", () => {
    const names = files.map((file) => file.path.split("/").at(-1) ?? "");
    expect(names.filter((name) => /^(utils?|helpers?|common|managers?|misc)\.ts$/.test(name))).toEqual([]);
    expect(
      names.filter((name) => !/^[a-z0-9]+(-[a-z0-9]+)*\.ts$/.test(name.replace(/\.test\.ts$/, ".ts"))),
    ).toEqual([]);
  });

  test("no source file is longer than 450 lines", () => {
    expect(files.filter((file) => file.text.split("\n").length > 450).map((file) => file.path)).toEqual([]);
  });
});
