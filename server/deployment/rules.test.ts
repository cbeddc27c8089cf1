import { create } from "@bufbuild/protobuf";
import { FieldMaskSchema } from "@bufbuild/protobuf/wkt";
import { expect, test } from "vitest";
import { TendonError } from "../../kit/errors.ts";
import { DeploymentSpecSchema } from "../../proto/gen/tendon/v1/deployment_pb.js";
import { changedSpec, checkDeploymentSpec, inSpec } from "./rules.ts";
import { isPassing, runFailure } from "./run-failures.ts";

const event = (type: string, more = {}) => ({ type, payload: "{}", ...more });
const good = {
  name: "n",
  agentId: "agent_1",
  initialEvents: [event("user.message")],
  schedule: { expression: "0 9 * * *", timeZone: "UTC" },
};

test.each([
  [{ name: " " }, "spec.name"],
  [{ agentId: "" }, "spec.agent_id"],
  [{ name: "a\0b" }, "spec.name"],
  [{ initialEvents: [] }, "spec.initial_events"],
  [{ initialEvents: [event("system.message"), event("acme.note")] }, "spec.initial_events"],
  [{ initialEvents: [event("user.message"), event("user.interrupt")] }, "spec.initial_events[1].type"],
  [{ initialEvents: [event("user.message", { id: "sevt_1" })] }, "spec.initial_events[0].id"],
  [{ initialEvents: [event("user.message", { threadId: "sthr_1" })] }, "spec.initial_events[0].thread_id"],
  [{ schedule: { expression: "@daily", timeZone: "UTC" } }, "spec.schedule.expression"],
  [{ schedule: { expression: "0 9 * * *", timeZone: "Nowhere" } }, "spec.schedule.time_zone"],
  [{ initialEvents: [event("user.message", { payload: `"${"x".repeat(1024 * 1024)}"` })] }, "spec"],
])("what is wrong with a deployment is said with its path: %#", (change, field) => {
  expect(() => checkDeploymentSpec(create(DeploymentSpecSchema, good))).not.toThrow();
  const wrong = create(DeploymentSpecSchema, { ...good, ...change });
  expect(() => checkDeploymentSpec(wrong)).toThrow(
    expect.objectContaining({ metadata: expect.objectContaining({ field }) }),
  );
});

test("a change replaces what its mask names, and merges metadata", () => {
  const before = create(DeploymentSpecSchema, {
    ...good,
    agentVersion: 3,
    description: "old",
    vaultIds: ["vlt_1"],
    metadata: { a: "1", b: "2" },
  });
  const wanted = create(DeploymentSpecSchema, {
    agentId: "agent_2",
    name: "not named by the mask",
    metadata: { b: "", c: "3" },
  });
  const mask = create(FieldMaskSchema, {
    paths: ["agent_id", "vault_ids", "metadata", "schedule", "description"],
  });
  expect(changedSpec(before, wanted, mask)).toMatchObject({
    name: "n",
    agentId: "agent_2",
    agentVersion: 0,
    vaultIds: [],
    description: "",
    metadata: { a: "1", c: "3" },
    schedule: undefined,
    initialEvents: [{ type: "user.message" }],
  });
  expect(changedSpec(before, wanted, undefined)).toEqual(before);
  expect(() => changedSpec(before, wanted, create(FieldMaskSchema, { paths: ["spec.name"] }))).toThrow(
    /update_mask\.paths\[0\]/,
  );
});

test("a refusal of the session's creation says the deployment's path", () => {
  const error = new TendonError("INVALID_FIELD", "resources[0].file: is odd", { field: "resources[0].file" });
  expect(inSpec(error)).toMatchObject({
    message: "spec.resources[0].file: is odd",
    metadata: { field: "spec.resources[0].file" },
  });
});

test.each([
  ["ENVIRONMENT_ARCHIVED", {}, "environment_archived_error", true],
  ["NOT_FOUND", { resource: "environment" }, "environment_not_found_error", true],
  ["AGENT_ARCHIVED", {}, "agent_archived_error", true],
  ["VAULT_ARCHIVED", {}, "vault_archived_error", true],
  ["NOT_FOUND", { resource: "vault" }, "vault_not_found_error", true],
  ["NOT_FOUND", { resource: "file" }, "file_not_found_error", true],
  ["NOT_FOUND", { resource: "skill version" }, "skill_not_found_error", true],
  ["NOT_FOUND", { resource: "memory store" }, "session_resource_not_found_error", true],
  ["MEMORY_STORE_ARCHIVED", {}, "memory_store_archived_error", true],
  ["SESSION_RUNNING", {}, "unknown_error", true],
  ["LIMIT_EXCEEDED", {}, "session_rate_limited_error", false],
  ["INVALID_FIELD", {}, "session_creation_rejected_error", false],
] as const)("%s %o is a run's %s", (reason, metadata, type, pauses) => {
  expect(runFailure(new TendonError(reason, "why", metadata))).toEqual({ type, message: "why", pauses });
});

test("a database that is away is no run", () => {
  expect(isPassing(new TendonError("UNAVAILABLE", "away"))).toBe(true);
  expect(isPassing(new TendonError("LIMIT_EXCEEDED", "full"))).toBe(false);
});
