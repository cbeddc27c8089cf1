import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { Health } from "../../proto/gen/grpc/health/v1/health_pb.js";
import {
  assertCovered,
  authorise,
  CONTRACT_SERVICES,
  callersOf,
  PRINCIPAL_KINDS,
} from "../../server/rpc/policy.ts";
import { EchoService } from "../kit/proto/echo_pb.ts";

const PROTOS = join(import.meta.dirname, "../../proto/tendon/v1");

/** "Service.Method" → what its comment says about callers. */
async function callersInComments(): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (const file of await readdir(PROTOS)) {
    let service = "";
    let callers: string | undefined;
    for (const line of (await readFile(join(PROTOS, file), "utf8")).split("\n")) {
      service = /^service (\w+)/.exec(line)?.[1] ?? service;
      callers = /^ {2}\/\/ Callers: (.*)\.$/.exec(line)?.[1] ?? callers;
      const method = /^ {2}rpc (\w+)\(/.exec(line)?.[1];
      if (method === undefined) continue;
      if (callers === undefined) throw new Error(`${service}.${method} says no callers`);
      found.set(`${service}.${method}`, callers);
      callers = undefined;
    }
  }
  return found;
}

test("every RPC's comment names the callers that the policy lets through, and no method is in only one of them", async () => {
  const comments = await callersInComments();
  const table = new Map<string, string>();
  for (const { name, methods } of CONTRACT_SERVICES) {
    for (const method of methods) {
      const callers = callersOf(method) ?? [];
      const everyone = callers.length === PRINCIPAL_KINDS.length;
      table.set(`${name}.${method.name}`, everyone ? "anyone who has a join token" : callers.join(", "));
    }
  }
  expect(Object.fromEntries(table)).toEqual(Object.fromEntries(comments));
});

test("a service without rows in the policy cannot be mounted", () => {
  expect(() => assertCovered([...CONTRACT_SERVICES, Health])).not.toThrow();
  expect(() => assertCovered([EchoService])).toThrow(/no row in the policy for: .*Echo/);
});

test("a method without a row is refused to everyone", () => {
  for (const kind of PRINCIPAL_KINDS) {
    const reason = kind === "anonymous" ? "UNAUTHENTICATED" : "ROLE_NOT_ALLOWED";
    expect(() => authorise(EchoService.method.unary, kind)).toThrow(expect.objectContaining({ reason }));
  }
});
