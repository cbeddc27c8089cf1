/** What a deployment may be, beyond what the proto and its sessions' creation say (pure). */
import { clone, create, toJsonString } from "@bufbuild/protobuf";
import type { FieldMask } from "@bufbuild/protobuf/wkt";
import { invalidField, TendonError } from "../../kit/errors.ts";
import { refuseNul } from "../../kit/nul.ts";
import { type DeploymentSpec, DeploymentSpecSchema } from "../../proto/gen/tendon/v1/deployment_pb.js";
import type { EventInput } from "../../proto/gen/tendon/v1/event_pb.js";
import {
  type CreateSessionRequest,
  CreateSessionRequestSchema,
} from "../../proto/gen/tendon/v1/session_service_pb.js";
import { timesOf } from "./planning.ts";

/** Of a workspace, those that are archived left out. */
export const MAX_DEPLOYMENTS = 1_000;
/** A page of lists must fit into a message. */
export const MAX_SPEC_BYTES = 1024 * 1024;
const MAX_METADATA_PAIRS = 16;

const STARTS_WORK = ["user.message", "user.define_outcome"];
const OTHERS_OF_OURS = ["system.message"];

/** INVALID_FIELD, EVENT_TYPE_NOT_ALLOWED, MESSAGE_TOO_LARGE. */
export function checkDeploymentSpec(spec: DeploymentSpec): void {
  refuseNul(spec, "spec");
  if (spec.name.trim() === "") throw invalidField("spec.name", "is required");
  if (spec.agentId === "") throw invalidField("spec.agent_id", "is required");
  checkInitialEvents(spec.initialEvents);
  if (spec.schedule !== undefined) timesOf(spec.schedule);
  const bytes = Buffer.byteLength(toJsonString(DeploymentSpecSchema, spec));
  if (bytes > MAX_SPEC_BYTES)
    throw new TendonError(
      "MESSAGE_TOO_LARGE",
      `spec: has ${bytes} bytes, a deployment has at most ${MAX_SPEC_BYTES}; large documents are files`,
      { field: "spec", bytes: String(bytes), limit: String(MAX_SPEC_BYTES) },
    );
}

/** As it is kept and shown: tokens are in a vault, each with its user's name. */
export function withoutTokens(spec: DeploymentSpec): DeploymentSpec {
  const bare = clone(DeploymentSpecSchema, spec);
  for (const { kind } of bare.resources) {
    if (kind.case !== "gitRepository") continue;
    kind.value.authorizationToken = "";
    kind.value.userName = "";
  }
  return bare;
}

function checkInitialEvents(events: readonly EventInput[]): void {
  for (const [at, { type, id, threadId }] of events.entries()) {
    const path = `spec.initial_events[${at}]`;
    if (id !== "") throw invalidField(`${path}.id`, "each session gives its events ids of its own");
    if (threadId !== "") throw invalidField(`${path}.thread_id`, "there are no threads yet");
    const isOurs = /^(user|system)\./.test(type);
    if (isOurs && ![...STARTS_WORK, ...OTHERS_OF_OURS].includes(type))
      throw new TendonError(
        "EVENT_TYPE_NOT_ALLOWED",
        `${path}.type: must be ${[...STARTS_WORK, ...OTHERS_OF_OURS].join(", ")}, or a type of your own`,
        { field: `${path}.type`, type },
      );
  }
  if (!events.some(({ type }) => STARTS_WORK.includes(type)))
    throw invalidField("spec.initial_events", `must hold at least one ${STARTS_WORK.join(" or ")}`);
}

/** What a run asks for. */
export function sessionRequest(spec: DeploymentSpec): CreateSessionRequest {
  const { name, agentId, agentVersion, environmentId, slotEnvironmentIds } = spec;
  const { vaultIds, initialEvents, resources, budget } = spec;
  return create(CreateSessionRequestSchema, {
    agentId,
    agentVersion,
    environmentId,
    slotEnvironmentIds,
    title: name,
    vaultIds,
    initialEvents,
    resources,
    ...(budget && { budget }),
  });
}

/** A failure of the session's creation, with the path that the field has in a deployment. */
export function inSpec(error: unknown): unknown {
  if (!(error instanceof TendonError)) return error;
  const { field } = error.metadata;
  if (field === undefined) return error;
  const message = error.message.startsWith(field) ? `spec.${error.message}` : error.message;
  return new TendonError(error.reason, message, { ...error.metadata, field: `spec.${field}` });
}

type SpecField = Exclude<keyof DeploymentSpec, "$typeName" | "$unknown">;

/** By their names in the contract. */
const FIELDS = new Map<string, SpecField>(
  DeploymentSpecSchema.fields.map(({ name, localName }) => [name, localName as SpecField]),
);

/** The fields that the mask names are those of `wanted`, the others as before. INVALID_FIELD. */
export function changedSpec(
  before: DeploymentSpec,
  wanted: DeploymentSpec,
  mask: FieldMask | undefined,
): DeploymentSpec {
  const after = clone(DeploymentSpecSchema, before) as DeploymentSpec & Record<SpecField, unknown>;
  for (const [at, path] of (mask?.paths ?? []).entries()) {
    const field = FIELDS.get(path);
    if (field === undefined)
      throw invalidField(
        `update_mask.paths[${at}]`,
        `"${path.slice(0, 64)}" is no field of a deployment's spec`,
      );
    if (field === "metadata") after.metadata = mergedMetadata(before.metadata, wanted.metadata);
    else (after as Record<SpecField, unknown>)[field] = wanted[field];
    if (field === "agentId") after.agentVersion = wanted.agentVersion;
  }
  return after;
}

function mergedMetadata(
  before: Readonly<Record<string, string>>,
  patch: Readonly<Record<string, string>>,
): Record<string, string> {
  const merged = new Map(Object.entries(before));
  for (const [key, value] of Object.entries(patch)) {
    if (value === "") merged.delete(key);
    else merged.set(key, value);
  }
  if (merged.size > MAX_METADATA_PAIRS)
    throw invalidField(
      "spec.metadata",
      `the deployment would have ${merged.size} pairs, at most ${MAX_METADATA_PAIRS}`,
    );
  return Object.fromEntries(merged);
}
