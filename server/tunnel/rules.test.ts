import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { HandResourceSchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { HandRecord } from "../store/hands.ts";
import { checkHand, repositoriesAt, targetOf } from "./rules.ts";

const repository = (url: string) =>
  create(HandResourceSchema, { kind: { case: "gitRepository", value: { url } } });

test("git goes to the hosts of the hand's repositories, with their ports, and to no other", () => {
  const variable = create(HandResourceSchema, {
    kind: { case: "variable", value: { name: "A", value: "b" } },
  });
  const resources = [
    repository("https://Git.Example/a/b.git"),
    variable,
    repository("https://other.example:8443/c"),
  ];
  const at = (host: string, port: number) => repositoriesAt({ host, port }, resources).map(({ url }) => url);
  expect(at("git.example", 443)).toEqual(["https://Git.Example/a/b.git"]);
  expect(at("other.example", 8443)).toEqual(["https://other.example:8443/c"]);
  expect([...at("other.example", 443), ...at("git.example", 8443), ...at("example", 443)]).toEqual([]);
});

test("what has two readings is no target", () => {
  for (const host of ["0x7f.1", "127.1", "a b", "", "user@host"]) expect(targetOf(host, 443)).toBeUndefined();
  expect(targetOf("api.example", 0)).toBeUndefined();
  expect(targetOf("API.example.", 8443)).toEqual({ host: "api.example", port: 8443 });
});

test("a hand that is not its session's any more opens nothing (H6)", () => {
  const hand = { state: "ready", ownerNumber: 3, sessionId: "sesn_1" } as HandRecord;
  const reasonFor = (change: Partial<HandRecord>, ownerNumber = 3) => {
    try {
      checkHand({ ...hand, ...change }, ownerNumber);
    } catch (error) {
      return (error as { reason: string }).reason;
    }
    return undefined;
  };
  expect(reasonFor({})).toBeUndefined();
  expect(reasonFor({ state: "provisioning" })).toBeUndefined();
  expect(reasonFor({}, 2)).toBe("LEASE_FENCED");
  expect(reasonFor({ state: "released" })).toBe("HAND_RELEASED");
  expect(reasonFor({ state: "lost" })).toBe("HAND_LOST");
  expect(reasonFor({ state: "parked" })).toBe("HAND_NOT_READY");
  expect(reasonFor({ sessionId: undefined })).toBe("ROLE_NOT_ALLOWED");
});
