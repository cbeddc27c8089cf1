/** Files that options name. "-" is standard input. */
import { readFileSync } from "node:fs";
import {
  type DescMessage,
  fromJson,
  type JsonObject,
  type JsonValue,
  type MessageShape,
} from "@bufbuild/protobuf";
import { StartupError } from "../kit/program.ts";
import { EXIT_USAGE } from "./command.ts";

/**
 * A message of the contract in its JSON form. Its own fields `asText` hold JSON as text, and may be written as objects as well.
 * Throws a StartupError that says what is wrong with the file.
 */
export function readJsonFile<S extends DescMessage>(
  schema: S,
  file: string,
  asText: readonly string[] = [],
): MessageShape<S> {
  const text = readText(file);
  try {
    return fromJson(schema, objectsAsText(JSON.parse(text), asText));
  } catch (error) {
    throw new StartupError(`${file} is no ${schema.name}: ${(error as Error).message}`, EXIT_USAGE);
  }
}

function objectsAsText(message: JsonValue, fields: readonly string[]): JsonValue {
  if (!isObject(message)) return message;
  const written = Object.entries(message).map(([name, value]) => [
    name,
    fields.includes(name) && isObject(value) ? JSON.stringify(value) : value,
  ]);
  return Object.fromEntries(written);
}

function isObject(value: JsonValue): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Throws a StartupError for a file that cannot be read. */
export function readText(file: string): string {
  try {
    return readFileSync(file === "-" ? 0 : file, "utf8");
  } catch (error) {
    throw new StartupError(`cannot read ${file}: ${(error as Error).message}`, EXIT_USAGE);
  }
}
