/**
 * A program's settings: one table says what there is, one reading of the environment gives all values or all problems.
 *
 *   const table = defineSettings({
 *     TENDON_PORT: { parse: port(), default: 7400, help: "The port for everything." },
 *     TENDON_API_KEY: { parse: text(), secret: true, help: "The key of this program." },
 *   });
 *   const settings = readSettings(table, environment, { knownElsewhere: [] });
 *   settings.values.TENDON_PORT;
 */
import { closeSync, readFileSync, statSync } from "node:fs";
import { nearestName } from "./nearest-name.ts";
import type { Parser } from "./parsers.ts";

export interface Setting<T = unknown> {
  parse: Parser<T>;
  /** Without it the value may be undefined. */
  default?: NoInfer<T>;
  /** Must be set. */
  required?: boolean;
  /** Never shown; one line; may also come from the file that NAME_FILE names. */
  secret?: boolean;
  /** Other names of the same setting, asked in order after its own, such as "https_proxy". */
  aliases?: readonly string[];
  /** What it means, its unit and bounds; one sentence or two. */
  help: string;
}

// biome-ignore lint/suspicious/noExplicitAny: a table holds settings of many types
export type SettingsTable = Readonly<Record<string, Setting<any>>>;

export type SettingValue<S> = S extends { parse: Parser<infer T> }
  ? S extends { default: unknown } | { required: true }
    ? T
    : T | undefined
  : never;

export type SettingValues<T extends SettingsTable> = { readonly [Name in keyof T]: SettingValue<T[Name]> };

/** Where a value came from. */
export type SettingSource =
  | { kind: "default" }
  | { kind: "unset" }
  | { kind: "environment"; name: string }
  | { kind: "file"; path: string };

export interface Settings<T extends SettingsTable> {
  readonly values: SettingValues<T>;
  readonly sources: Readonly<Record<keyof T & string, SettingSource>>;
  readonly table: T;
}

/** The environment does not hold usable settings; one line for each problem. */
export class SettingsError extends Error {
  override readonly name = "SettingsError";
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join("\n"));
    this.problems = problems;
  }
}

export interface ReadOptions {
  /** Names that other programs know; they may stand in the environment and mean nothing here. */
  knownElsewhere: readonly string[];
}

type Environment = Readonly<Record<string, string | undefined>>;

const OWN_PREFIX = "TENDON_";
const MAX_SECRET_FILE_BYTES = 64 * 1024;

/** Checks nothing; keeps the types of the table's values. */
export function defineSettings<const T extends SettingsTable>(table: T): T {
  return table;
}

/** Reads every setting once. An empty variable counts as not set. Throws a SettingsError with all problems. */
export function readSettings<T extends SettingsTable>(
  table: T,
  environment: Environment,
  options: ReadOptions,
): Settings<T> {
  const problems = unknownNames(table, environment, options.knownElsewhere);
  const values: Record<string, unknown> = {};
  const sources: Record<string, SettingSource> = {};
  for (const [name, setting] of Object.entries(table)) {
    try {
      const { text, source } = findText(name, setting, environment);
      sources[name] = source;
      values[name] = text === undefined ? setting.default : parseText(name, setting, text, source);
    } catch (error) {
      if (!(error instanceof SettingsError)) throw error;
      problems.push(...error.problems);
    }
  }
  if (problems.length > 0) throw new SettingsError(problems);
  return { values: values as SettingValues<T>, sources: sources as Settings<T>["sources"], table };
}

/** All names that a program with this table knows, also the `_FILE` forms. */
export function settingNames(table: SettingsTable): string[] {
  return Object.entries(table).flatMap(([name, setting]) => [
    name,
    ...(setting.aliases ?? []),
    ...(setting.secret ? [`${name}_FILE`] : []),
  ]);
}

function findText(
  name: string,
  setting: Setting,
  environment: Environment,
): { text: string | undefined; source: SettingSource } {
  const used = [name, ...(setting.aliases ?? [])].find((candidate) => environment[candidate]);
  const path = setting.secret ? environment[`${name}_FILE`] : undefined;
  if (used !== undefined && path) {
    throw new SettingsError([`${used} and ${name}_FILE are both set; set one of them`]);
  }
  if (path) return { text: readSecretFile(`${name}_FILE`, path), source: { kind: "file", path } };
  if (used !== undefined) {
    const text = setting.secret ? secretText(used, environment[used]!) : environment[used];
    return { text, source: { kind: "environment", name: used } };
  }
  if (setting.required) {
    const how = setting.secret ? `${name} or ${name}_FILE` : name;
    throw new SettingsError([`${how} must be set: ${setting.help}`]);
  }
  return { text: undefined, source: { kind: setting.default === undefined ? "unset" : "default" } };
}

function readSecretFile(name: string, path: string): string {
  let text: string;
  try {
    text = readSecretText(path).trimEnd();
  } catch (error) {
    throw new SettingsError([`${name}: cannot read ${path}: ${(error as Error).message}`]);
  }
  if (text === "") throw new SettingsError([`${name}: ${path} is empty`]);
  return secretText(name, text);
}

/** Without white space at its end, which came with copying. What is left must be one line: keys go into headers. */
function secretText(name: string, value: string): string {
  const text = value.trimEnd();
  if (text === "") throw new SettingsError([`${name} holds nothing but white space`]);
  if (/\p{Cc}/u.test(text)) {
    throw new SettingsError([`${name} holds a control character (a line break?) within the secret`]);
  }
  return text;
}

/** "/dev/fd/N" is read as the inherited descriptor itself, once, and closed: a launcher's pipe cannot be opened by its name. */
function readSecretText(path: string): string {
  const inherited = /^\/dev\/fd\/(\d{1,4})$/.exec(path);
  if (inherited === null) {
    if (statSync(path).size > MAX_SECRET_FILE_BYTES) throw new Error("it is too large for a secret");
    return readFileSync(path, "utf8");
  }
  const fd = Number(inherited[1]);
  try {
    return readFileSync(fd, "utf8");
  } finally {
    closeSync(fd);
  }
}

function parseText(name: string, setting: Setting, text: string, source: SettingSource): unknown {
  try {
    return setting.parse(text);
  } catch (error) {
    const where =
      source.kind === "file" ? `${name}_FILE` : source.kind === "environment" ? source.name : name;
    const got = setting.secret ? "" : `, not ${JSON.stringify(text.slice(0, 100))}`;
    throw new SettingsError([`${where} ${(error as Error).message}${got}`]);
  }
}

function unknownNames(
  table: SettingsTable,
  environment: Environment,
  elsewhere: readonly string[],
): string[] {
  const known = new Set([...settingNames(table), ...elsewhere]);
  return Object.keys(environment)
    .filter((name) => name.startsWith(OWN_PREFIX) && !known.has(name))
    .sort()
    .map((name) => {
      const nearest = nearestName(name, [...known]);
      const hint = nearest === undefined ? "" : `; did you mean ${nearest}?`;
      return `${name} is no setting that Tendon knows${hint}`;
    });
}
