/** Version 1 of the hand agents' protocol, as it was on the wire: builds of other releases say and understand exactly this. */
import { readFileSync } from "node:fs";
import { type DescMessage, fromBinary, fromJson, type JsonValue, toBinary, toJson } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import * as wire from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";

interface Recorded {
  readonly from: "agent" | "server";
  readonly type: string;
  readonly bytes: string;
  readonly json: JsonValue;
}

const file = new URL("../golden/wire/hand-agent-1.json", import.meta.url);
const recorded = JSON.parse(readFileSync(file, "utf8")) as Recorded[];
const schemas = new Map(
  Object.values(wire).flatMap((value) =>
    typeof value === "object" && "kind" in value && value.kind === "message" ? [[value.typeName, value]] : [],
  ) as [string, DescMessage][],
);

const named = recorded.map((message) => {
  const { json, type } = message;
  const kind = typeof json === "object" && json !== null ? Object.keys(json)[0] : "";
  return [`${message.from}: ${type.split(".").at(-1)} ${kind}`, message] as const;
});

test.each(named)("%s is read and written as it was", (_, { type, bytes, json }) => {
  const schema = schemas.get(type)!;
  const message = fromBinary(schema, Buffer.from(bytes, "base64"));
  expect(message.$unknown).toBeUndefined();
  expect(toJson(schema, message)).toEqual(json);
  expect(Buffer.from(toBinary(schema, fromJson(schema, json))).toString("base64")).toBe(bytes);
});
