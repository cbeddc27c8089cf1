/** Reads fields of a JSON object: each of the type that is wanted, or an INVALID_FIELD with its path (pure). */
import { invalidField } from "../../../kit/errors.ts";

export class Fields {
  readonly value: Readonly<Record<string, unknown>>;
  readonly path: string;

  constructor(value: Readonly<Record<string, unknown>>, path: string) {
    this.value = value;
    this.path = path;
  }

  /** Whether it is said, null included. */
  has(name: string): boolean {
    return Object.hasOwn(this.value, name) && this.value[name] !== undefined;
  }

  at(name: string): string {
    return this.path === "" ? name : `${this.path}.${name}`;
  }

  /** Undefined when it is not said; null counts as that too. */
  text(name: string): string | undefined {
    return this.optional(name, "a string", (value) => typeof value === "string") as string | undefined;
  }

  requiredText(name: string): string {
    const text = this.text(name);
    if (text === undefined || text === "") throw invalidField(this.at(name), "is required");
    return text;
  }

  /** Undefined when it is not said, or null: of an update, which keeps it then. Empty it cannot be. */
  changedText(name: string): string | undefined {
    return this.text(name) === undefined ? undefined : this.requiredText(name);
  }

  flag(name: string): boolean | undefined {
    return this.optional(name, "true or false", (value) => typeof value === "boolean") as boolean | undefined;
  }

  /** A whole number from 1. */
  count(name: string): number | undefined {
    const fits = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 1;
    return this.optional(name, "a whole number from 1", fits) as number | undefined;
  }

  /** A whole number. */
  integer(name: string): number | undefined {
    return this.optional(name, "a whole number", Number.isSafeInteger) as number | undefined;
  }

  object(name: string): Fields | undefined {
    const value = this.optional(name, "an object", isObject);
    return value === undefined ? undefined : new Fields(value as Record<string, unknown>, this.at(name));
  }

  requiredObject(name: string): Fields {
    const found = this.object(name);
    if (found === undefined) throw invalidField(this.at(name), "is required");
    return found;
  }

  /** Undefined when it is not said; null counts as that too. */
  list(name: string): readonly unknown[] | undefined {
    return this.optional(name, "a list", Array.isArray) as readonly unknown[] | undefined;
  }

  objects(name: string): readonly Fields[] | undefined {
    return this.list(name)?.map((value, at) => fieldsOf(value, `${this.at(name)}[${at}]`));
  }

  texts(name: string): readonly string[] | undefined {
    return this.list(name)?.map((value, at) => {
      if (typeof value !== "string") throw invalidField(`${this.at(name)}[${at}]`, "must be a string");
      return value;
    });
  }

  /** The value is one of these words. */
  word<W extends string>(name: string, words: readonly W[]): W | undefined {
    const text = this.text(name);
    if (text === undefined || (words as readonly string[]).includes(text)) return text as W | undefined;
    throw invalidField(this.at(name), `must be ${words.join(" or ")}`);
  }

  /** Throws unless all that is said is among these. */
  only(...names: readonly string[]): void {
    const other = Object.keys(this.value).find((name) => !names.includes(name));
    if (other !== undefined) throw invalidField(this.at(other), "is not a field here");
  }

  private optional(name: string, wanted: string, fits: (value: unknown) => boolean): unknown {
    const value = this.value[name];
    if (value === undefined || value === null) return undefined;
    if (!fits(value)) throw invalidField(this.at(name), `must be ${wanted}`);
    return value;
  }
}

export function fieldsOf(value: unknown, path: string): Fields {
  if (!isObject(value)) throw invalidField(path, "must be an object");
  return new Fields(value as Record<string, unknown>, path);
}

function isObject(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
