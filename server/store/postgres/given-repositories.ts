/** Repositories that a session was given, as resources of its hands. Both are kept as JSON text of the contract's messages. */
import { create, fromJson, type JsonValue, toJson } from "@bufbuild/protobuf";
import { HandResourceSchema } from "../../../proto/gen/tendon/v1/hand_pb.js";
import { SessionResourceSchema } from "../../../proto/gen/tendon/v1/session_pb.js";

/** `resources` of a hand that is asked for, and behind them the repositories among those that its session was `given`. */
export function withRepositories(resources: string, given: string, slot: string): string {
  const repositories = (JSON.parse(given) as JsonValue[]).flatMap((each) => {
    const { kind } = fromJson(SessionResourceSchema, each, { ignoreUnknownFields: true });
    if (kind.case !== "gitRepository" || kind.value.slot !== slot) return [];
    const { url, checkout, mountPath: path, pushBranches } = kind.value;
    const { case: at, value: name } = checkout?.at ?? { case: undefined, value: "" };
    const value = { url, path, pushBranches, ...(at !== undefined && { [at]: name }) };
    const resource = create(HandResourceSchema, { kind: { case: "gitRepository", value } });
    return [toJson(HandResourceSchema, resource)];
  });
  if (repositories.length === 0) return resources;
  return JSON.stringify([...(JSON.parse(resources) as JsonValue[]), ...repositories]);
}
