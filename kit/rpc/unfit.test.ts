import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import {
  CreateDeploymentRequestSchema,
  ListDeploymentsRequestSchema,
} from "../../proto/gen/tendon/v1/deployment_service_pb.js";
import { ReplayWebhookDeliveriesRequestSchema } from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import { tooMany, unfitForWire, unfitTime } from "./unfit.ts";

const deployment = (spec: object) => create(CreateDeploymentRequestSchema, { spec });
const pathIn = (spec: object) => unfitForWire(CreateDeploymentRequestSchema, deployment(spec))?.path;

test("half a surrogate pair is found wherever a text may stand, and whole ones are texts", () => {
  const half = "x\ud800";
  expect(pathIn({ name: half })).toBe("spec.name");
  expect(pathIn({ vaultIds: ["a", half] })).toBe("spec.vault_ids[1]");
  expect(pathIn({ metadata: { a: half } })).toBe('spec.metadata["a"]');
  expect(pathIn({ metadata: { [half]: "a" } })).toBe("spec.metadata");
  expect(pathIn({ resources: [{ kind: { case: "file", value: { fileId: half } } }] })).toBe(
    "spec.resources[0].file.file_id",
  );
  expect(pathIn({ name: "🙂", metadata: { "🙂": "🙂" }, agentVersion: 7 })).toBeUndefined();
});

test("a number that its field cannot have is found", () => {
  for (const agentVersion of [2 ** 31, -(2 ** 31) - 1, 1e12, 1.5, Number.NaN])
    expect(pathIn({ agentVersion })).toBe("spec.agent_version");
  for (const agentVersion of [2 ** 31 - 1, -(2 ** 31), 0]) expect(pathIn({ agentVersion })).toBeUndefined();
});

test("a time outside of the years 1 to 9999, or with more nanoseconds than a second has, is none", () => {
  const pathOf = (seconds: bigint, nanos = 0) => {
    const createdBefore = { seconds, nanos };
    const request = create(ListDeploymentsRequestSchema, { createdBefore });
    return unfitTime(ListDeploymentsRequestSchema, request)?.path;
  };
  for (const seconds of [10n ** 18n, -(10n ** 18n), 253_402_300_800n, -62_135_596_801n])
    expect(pathOf(seconds)).toBe("created_before");
  for (const nanos of [-1, 1_000_000_000]) expect(pathOf(0n, nanos)).toBe("created_before");
  for (const seconds of [0n, 253_402_300_799n, -62_135_596_800n]) expect(pathOf(seconds)).toBeUndefined();
  const which = { case: "since" as const, value: { seconds: 10n ** 18n, nanos: 0 } };
  const replay = create(ReplayWebhookDeliveriesRequestSchema, { which: which as never });
  expect(unfitTime(ReplayWebhookDeliveriesRequestSchema, replay)?.path).toBe("since");
});

test("more entries than a list or map may have are found without a look at each", () => {
  const find = (spec: object) => tooMany(CreateDeploymentRequestSchema, deployment(spec));
  const pairs = (count: number) =>
    Object.fromEntries(Array.from({ length: count }, (_, at) => [`k${at}`, "v"]));
  const problem = "must have at most 16 entries";
  expect(find({ metadata: pairs(17) })).toEqual({ path: "spec.metadata", problem });
  expect(find({ vaultIds: Array(51).fill("v") })?.path).toBe("spec.vault_ids");
  expect(
    find({ metadata: pairs(16), vaultIds: Array(50).fill("v"), initialEvents: [{ type: "x" }] }),
  ).toBeUndefined();
  const looked: string[] = [];
  const watched = new Proxy(pairs(1_000), {
    get: (target, key) => {
      looked.push(String(key));
      return Reflect.get(target, key);
    },
  });
  const request = deployment({});
  request.spec!.metadata = watched;
  expect(tooMany(CreateDeploymentRequestSchema, request)?.path).toBe("spec.metadata");
  expect(looked).toEqual([]);
});
