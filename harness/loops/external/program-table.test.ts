import { describe, expect, it } from "vitest";
import { parseProgramTable, readProgramTable } from "./program-table.ts";

describe("the table of programs", () => {
  it("gives names commands", () => {
    const table = parseProgramTable(
      '{"a": {"command": ["sh", "-c", "x"], "env": {"MODE": "1"}}, "b_2": {"command": ["y"]}}',
    );
    expect([...table]).toEqual([
      ["a", { argv: ["sh", "-c", "x"], environment: { MODE: "1" } }],
      ["b_2", { argv: ["y"], environment: {} }],
    ]);
  });

  it("says what is wrong with it", () => {
    expect(() => parseProgramTable("[]")).toThrow("one JSON object");
    expect(() => parseProgramTable('{"A": {"command": ["x"]}}')).toThrow('"A" is no name');
    expect(() => parseProgramTable('{"a": {"command": "x y"}}')).toThrow('"a".command must be a list');
    expect(() => parseProgramTable('{"a": {"command": []}}')).toThrow('"a".command must be a list');
    expect(() => parseProgramTable('{"a": {"command": ["x"], "shell": true}}')).toThrow('"a" has "shell"');
    expect(() => parseProgramTable('{"a": {"command": ["x"], "env": {"A B": "1"}}}')).toThrow('"A B"');
    expect(() => parseProgramTable('{"a": {"command": ["x"], "env": {"AB": 1}}}')).toThrow('"AB"');
  });

  it("names its file when that cannot be read", () => {
    expect(() => readProgramTable("/nonexistent/loops.json")).toThrow(
      /TENDON_EXTERNAL_LOOPS \(\/nonexistent\/loops\.json\)/,
    );
  });
});
