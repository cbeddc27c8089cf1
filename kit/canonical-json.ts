/** One text for one meaning: the proto's JSON with sorted names, for comparing, hashing and storing messages. */
import { createHash } from "node:crypto";
import { type DescMessage, type JsonValue, type MessageShape, toJson } from "@bufbuild/protobuf";

/** Equal for messages that mean the same, whatever order their maps were sent in. Texts inside are kept byte for byte. */
export function canonicalJson<D extends DescMessage>(schema: D, message: MessageShape<D>): string {
  return JSON.stringify(sorted(toJson(schema, message)));
}

/** SHA-256 of the canonical text. */
export function contentHash<D extends DescMessage>(schema: D, message: MessageShape<D>): Buffer {
  return createHash("sha256").update(canonicalJson(schema, message)).digest();
}

function sorted(value: JsonValue): JsonValue {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== "object") return value;
  const names = Object.keys(value).sort();
  return Object.fromEntries(names.map((name) => [name, sorted(value[name]!)]));
}
