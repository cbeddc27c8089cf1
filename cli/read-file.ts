/** Files that options name. "-" is standard input. */
import { readFileSync } from "node:fs";
import { type DescMessage, fromJsonString, type MessageShape } from "@bufbuild/protobuf";
import { StartupError } from "../kit/program.ts";
import { EXIT_USAGE } from "./command.ts";

/** A message of the contract in its JSON form. Throws a StartupError that says what is wrong with the file. */
export function readJsonFile<S extends DescMessage>(schema: S, file: string): MessageShape<S> {
  const text = readText(file);
  try {
    return fromJsonString(schema, text);
  } catch (error) {
    throw new StartupError(`${file} is no ${schema.name}: ${(error as Error).message}`, EXIT_USAGE);
  }
}

/** Throws a StartupError for a file that cannot be read. */
export function readText(file: string): string {
  try {
    return readFileSync(file === "-" ? 0 : file, "utf8");
  } catch (error) {
    throw new StartupError(`cannot read ${file}: ${(error as Error).message}`, EXIT_USAGE);
  }
}
