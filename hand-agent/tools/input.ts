/** Reads fields of a tool's input; every complaint names the tool and the field. */
import { isAbsolute, resolve } from "node:path";
import type { Hand } from "../drivers/driver.ts";
import { InputError } from "./tool.ts";

type Input = Readonly<Record<string, unknown>>;

export function requiredString(tool: string, input: Input, name: string): string {
  const value = optionalString(tool, input, name);
  if (value === undefined) throw new InputError(`${tool}: ${name} is required`);
  return value;
}

export function optionalString(tool: string, input: Input, name: string): string | undefined {
  const value = input[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "string") throw new InputError(`${tool}: ${name} must be a string`);
  return value;
}

export function optionalBoolean(tool: string, input: Input, name: string): boolean {
  const value = input[name] ?? false;
  if (typeof value !== "boolean") throw new InputError(`${tool}: ${name} must be true or false`);
  return value;
}

export function optionalInteger(
  tool: string,
  input: Input,
  name: string,
  { min, max }: { min: number; max: number },
): number | undefined {
  const value = input[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "number" || !Number.isInteger(value) || value < min || value > max) {
    throw new InputError(`${tool}: ${name} must be a whole number from ${min} to ${max}`);
  }
  return value;
}

/** A path of the hand: relative ones start at the work directory. */
export function requiredPath(
  tool: string,
  input: Input,
  name: string,
  hand: Hand,
): { given: string; path: string } {
  const given = requiredString(tool, input, name);
  if (given === "") throw new InputError(`${tool}: ${name} is required`);
  if (given.includes("\0")) throw new InputError(`${tool}: ${name} must not hold a NUL character`);
  return { given, path: isAbsolute(given) ? resolve(given) : resolve(hand.workdir, given) };
}
