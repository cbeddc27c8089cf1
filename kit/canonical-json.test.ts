import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { AgentSpecSchema } from "../proto/gen/tendon/v1/agent_pb.js";
import { canonicalJson, contentHash } from "./canonical-json.ts";

const spec = (init: Parameters<typeof create<typeof AgentSpecSchema>>[1]) => create(AgentSpecSchema, init);

test("the order in which a map was filled does not count, its contents do", () => {
  const one = spec({ name: "x", metadata: { b: "1", a: "2" } });
  const same = spec({ metadata: { a: "2", b: "1" }, name: "x" });
  const other = spec({ name: "x", metadata: { a: "1", b: "2" } });
  expect(canonicalJson(AgentSpecSchema, one)).toBe(canonicalJson(AgentSpecSchema, same));
  expect(contentHash(AgentSpecSchema, one)).toEqual(contentHash(AgentSpecSchema, same));
  expect(contentHash(AgentSpecSchema, one)).not.toEqual(contentHash(AgentSpecSchema, other));
});

test("lists keep their order and texts inside their bytes", () => {
  const servers = [
    { name: "b", url: "https://b.example" },
    { name: "a", url: "https://a.example" },
  ];
  const text = canonicalJson(
    AgentSpecSchema,
    spec({ mcpServers: servers, loopSettings: '{"z": 1,  "a": 1e2}' }),
  );
  expect(JSON.parse(text)).toEqual({ mcpServers: servers, loopSettings: '{"z": 1,  "a": 1e2}' });
});

test("a map may have the names that objects come with", () => {
  const text = canonicalJson(AgentSpecSchema, spec({ metadata: { constructor: "1", toString: "2" } }));
  expect(text).toBe('{"metadata":{"constructor":"1","toString":"2"}}');
});
