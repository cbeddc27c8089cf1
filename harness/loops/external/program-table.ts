/**
 * The programs that agents may name for the `external` loop: what TENDON_EXTERNAL_LOOPS points to.
 *
 *   {"planner": {"command": ["python3", "/opt/loops/planner.py"], "env": {"MODE": "fast"}}}
 *
 * Commands stand here, in a file of the machine, and never in an agent, because agents are written by clients.
 */
import { readFileSync } from "node:fs";
import { messageOf } from "../../../kit/errors.ts";
import { isObject } from "../../event-payload.ts";

export interface ExternalProgram {
  readonly argv: readonly string[];
  /** Added to what every program gets. */
  readonly environment: Readonly<Record<string, string>>;
}

export type ProgramTable = ReadonlyMap<string, ExternalProgram>;

const NAME = /^[a-z][a-z0-9_-]{0,63}$/;
const MAX_FILE_BYTES = 1024 * 1024;

/** Throws an Error that names the file and what is wrong in it. */
export function readProgramTable(path: string): ProgramTable {
  try {
    const text = readFileSync(path, "utf8");
    if (text.length > MAX_FILE_BYTES) throw new Error(`it is larger than ${MAX_FILE_BYTES} bytes`);
    return parseProgramTable(text);
  } catch (error) {
    throw new Error(`TENDON_EXTERNAL_LOOPS (${path}): ${messageOf(error)}`);
  }
}

export function parseProgramTable(text: string): ProgramTable {
  const table: unknown = JSON.parse(text);
  if (!isObject(table)) throw new Error("must hold one JSON object: a program for each name");
  return new Map(Object.entries(table).map(([name, row]) => [name, programOf(name, row)]));
}

function programOf(name: string, row: unknown): ExternalProgram {
  if (!NAME.test(name)) throw new Error(`"${name}" is no name: a-z, then a-z, 0-9, "_" and "-", at most 64`);
  if (!isObject(row)) throw new Error(`"${name}" must be an object with a "command"`);
  const unknown = Object.keys(row).find((key) => key !== "command" && key !== "env");
  if (unknown !== undefined) throw new Error(`"${name}" has "${unknown}"; known are "command" and "env"`);
  const { command, env = {} } = row;
  const isText = (item: unknown): item is string => typeof item === "string" && !item.includes("\0");
  if (!Array.isArray(command) || command.length === 0 || !command.every(isText) || command[0] === "") {
    throw new Error(`"${name}".command must be a list of strings that begins with the program`);
  }
  if (!isObject(env)) throw new Error(`"${name}".env must be an object of strings`);
  const environment: Record<string, string> = {};
  for (const [variable, value] of Object.entries(env)) {
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(variable) || !isText(value)) {
      throw new Error(`"${name}".env has "${variable}", which is no variable with a string`);
    }
    environment[variable] = value;
  }
  return { argv: command, environment };
}
