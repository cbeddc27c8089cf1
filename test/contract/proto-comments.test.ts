import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { REASONS } from "../../kit/errors.ts";
import { ROOT } from "../tidy/source-tree.ts";

const folder = join(ROOT, "proto/tendon/v1");
const protos = readdirSync(folder).map((name) => ({ name, text: readFileSync(join(folder, name), "utf8") }));

interface Rpc {
  readonly name: string;
  readonly comment: string;
}

const rpcs: Rpc[] = protos.flatMap(({ name, text }) =>
  [...text.matchAll(/((?: {2}\/\/.*\n)+) {2}rpc (\w+)\(/g)].map((match) => ({
    name: `${name} ${match[2]}`,
    comment: (match[1] as string).replaceAll(/^ {2}\/\/ ?/gm, ""),
  })),
);

describe("comments of the contract", () => {
  test("every RPC is found with its comment", () => {
    const declared = protos.flatMap(({ text }) => [...text.matchAll(/^ {2}rpc /gm)]).length;
    expect(rpcs.length).toBe(declared);
    expect(declared).toBeGreaterThan(70);
  });

  test.each(["Effect", "Idempotency", "Fails", "Callers"])("every RPC says its %s", (word) => {
    expect(
      rpcs.filter(({ comment }) => !new RegExp(`^${word}: \\S`, "m").test(comment)).map(({ name }) => name),
    ).toEqual([]);
  });

  test("every failure that a comment names is in the catalogue of reasons", () => {
    const unknown = rpcs.flatMap(({ name, comment }) => {
      const fails = /^Fails: ([\s\S]*?)(?=^Callers:)/m.exec(comment)?.[1] ?? "";
      const named = fails.match(/\b[A-Z]+(?:_[A-Z]+)+\b/g) ?? [];
      return named.filter((reason) => !(reason in REASONS)).map((reason) => `${name}: ${reason}`);
    });
    expect(unknown).toEqual([]);
  });
});
