/** Postgres keeps no U+0000 in a text, and nothing that people name or describe needs one. */
import { invalidField } from "./errors.ts";

/** Throws INVALID_FIELD naming the path of the first text in a message or map, a key included, that holds U+0000. */
export function refuseNul(value: unknown, path: string): void {
  if (typeof value === "string") {
    if (value.includes("\0")) throw invalidField(path, "must not hold a NUL character");
  } else if (Array.isArray(value)) {
    for (const [index, item] of value.entries()) refuseNul(item, `${path}[${index}]`);
  } else if (typeof value === "object" && value !== null && !ArrayBuffer.isView(value)) {
    refuseNulInObject(value, path);
  }
}

/** As `refuseNul`, of fields of a request, which are given by their names in the program. */
export function refuseNulIn(fields: Readonly<Record<string, unknown>>): void {
  for (const [name, value] of Object.entries(fields)) refuseNul(value, snake(name));
}

function refuseNulInObject(value: object, path: string): void {
  if ("case" in value && "value" in value) {
    refuseNul(value.value, `${path}.${snake(String(value.case))}`);
    return;
  }
  const isMessage = "$typeName" in value;
  for (const [name, item] of Object.entries(value)) {
    if (name.includes("\0")) throw invalidField(path, "must not hold a NUL character");
    if (name === "$typeName") continue;
    // What stands in a oneof is named by its case alone.
    const isOneof = typeof item === "object" && item !== null && "case" in item;
    refuseNul(item, isOneof ? path : isMessage ? `${path}.${snake(name)}` : `${path}["${name}"]`);
  }
}

/** Fields of messages have other names in the contract than in the program. */
function snake(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
