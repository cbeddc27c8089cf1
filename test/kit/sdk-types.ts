/**
 * The official client's declarations as a check of values: what a client that was compiled against them relies on. Of the
 * declarations it reads as much as those of the API's objects are made of: interfaces, unions, lists, maps and literals.
 */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

type Type =
  | { readonly kind: "literal"; readonly value: string | number | boolean | null }
  | { readonly kind: "primitive"; readonly name: string }
  | { readonly kind: "list"; readonly of: Type }
  | { readonly kind: "map"; readonly of: Type }
  | { readonly kind: "object"; readonly fields: readonly Field[]; readonly bases: readonly string[] }
  | { readonly kind: "union"; readonly of: readonly Type[] }
  | { readonly kind: "named"; readonly name: string };

interface Field {
  readonly name: string;
  readonly isOptional: boolean;
  readonly type: Type;
}

const TOKEN = /'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[A-Za-z_$][\w$]*|\d+|[{}[\]<>():;,|?.=&]/g;
const PRIMITIVES = new Set(["string", "number", "boolean", "unknown", "any"]);

/** Texts by name; the client has no name twice among those of its API. Each is read once it is asked for. */
let texts: ReadonlyMap<string, Declaration> | undefined;
const types = new Map<string, Type>();

interface Declaration {
  readonly text: string;
  readonly bases: readonly string[];
}

const INTERFACE = /^export interface (\w+)(?: extends ([\w., ]+))? (?=\{)/gm;
const ALIAS = /^export type (\w+)() = /gm;

function declarations(): ReadonlyMap<string, Declaration> {
  const client = dirname(fileURLToPath(import.meta.resolve("@anthropic-ai/sdk")));
  texts ??= new Map(filesBelow(join(client, "resources", "beta")).flatMap(declarationsOf));
  return texts;
}

function filesBelow(directory: string): string[] {
  return readdirSync(directory, { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".d.ts"))
    .map((name) => join(directory, name));
}

function declarationsOf(path: string): [name: string, declaration: Declaration][] {
  const text = readFileSync(path, "utf8").replace(/\/\*[\s\S]*?\*\//g, "");
  const heads = [INTERFACE, ALIAS].flatMap((pattern) => [...text.matchAll(pattern)]);
  return heads.map(({ 0: head, 1: name, 2: bases = "", index }) => {
    const names = bases.split(",").map((base) => base.trim().split(".").at(-1)!);
    const declaration = {
      text: text.slice(index + head.length),
      bases: names.filter((base) => base !== ""),
    };
    return [name!, declaration];
  });
}

class TypeReader {
  private readonly tokens: Iterator<RegExpExecArray>;
  private next: string;

  constructor(text: string) {
    this.tokens = text.matchAll(TOKEN);
    this.next = this.read();
  }

  type(): Type {
    this.skip("|");
    const of = [this.single()];
    while (this.skip("|")) of.push(this.single());
    return of.length === 1 ? of[0]! : { kind: "union", of };
  }

  private single(): Type {
    let type = this.base();
    while (this.skip("[")) {
      this.expect("]");
      type = { kind: "list", of: type };
    }
    // "string & {}" is any string: names that are known now stand beside it.
    while (this.skip("&")) this.base();
    return type;
  }

  private base(): Type {
    const token = this.take();
    if (token === "{") return this.object();
    if (token === "(") {
      const type = this.type();
      this.expect(")");
      return type;
    }
    if (/^['"]/.test(token)) return { kind: "literal", value: token.slice(1, -1) };
    if (/^\d/.test(token)) return { kind: "literal", value: Number(token) };
    if (token === "null") return { kind: "literal", value: null };
    if (token === "true" || token === "false") return { kind: "literal", value: token === "true" };
    if (PRIMITIVES.has(token)) return { kind: "primitive", name: token };
    let name = token;
    while (this.skip(".")) name = this.take();
    if (!this.skip("<")) return { kind: "named", name };
    const of = this.type();
    while (this.next !== ">" && this.next !== "") this.take();
    this.take();
    return name === "Array" ? { kind: "list", of } : { kind: "primitive", name: "unknown" };
  }

  private object(): Type {
    const fields: Field[] = [];
    while (!this.skip("}")) {
      if (this.skip("[")) {
        while (!this.skip("]")) this.take();
        this.expect(":");
        const of = this.type();
        this.skip(";");
        this.expect("}");
        return { kind: "map", of };
      }
      const name = this.take().replace(/^['"]|['"]$/g, "");
      const isOptional = this.skip("?");
      this.expect(":");
      fields.push({ name, isOptional, type: this.type() });
      this.skip(";");
    }
    return { kind: "object", fields, bases: [] };
  }

  private skip(token: string): boolean {
    if (this.next !== token) return false;
    this.take();
    return true;
  }

  private expect(token: string): void {
    const found = this.take();
    if (found !== token) throw new Error(`a declaration has "${found}" where "${token}" was expected`);
  }

  private take(): string {
    const token = this.next;
    if (token === "") throw new Error("a declaration ends in its middle");
    this.next = this.read();
    return token;
  }

  private read(): string {
    const { value, done } = this.tokens.next();
    return done === true ? "" : (value as RegExpExecArray)[0];
  }
}

/** What keeps `value` from being of the client's type of this name, each with its path; fields that are not declared are no fault. */
export function faultsOf(name: string, value: unknown): string[] {
  return faults({ kind: "named", name }, value, name);
}

function faults(type: Type, value: unknown, path: string): string[] {
  switch (type.kind) {
    case "literal":
      return type.value === value ? [] : [`${path} is ${said(value)}, not ${said(type.value)}`];
    case "primitive":
      return type.name === "unknown" || type.name === "any" || typeof value === type.name
        ? []
        : [`${path} is ${said(value)}, not a ${type.name}`];
    case "list":
      if (!Array.isArray(value)) return [`${path} is ${said(value)}, not a list`];
      return value.flatMap((one, at) => faults(type.of, one, `${path}[${at}]`));
    case "map":
      if (!isObject(value)) return [`${path} is ${said(value)}, not an object`];
      return Object.entries(value).flatMap(([name, one]) => faults(type.of, one, `${path}.${name}`));
    case "object":
      return objectFaults(type, value, path);
    case "union":
      return unionFaults(type.of, value, path);
    case "named":
      return faults(named(type.name), value, path);
  }
}

function objectFaults(type: Extract<Type, { kind: "object" }>, value: unknown, path: string): string[] {
  if (!isObject(value)) return [`${path} is ${said(value)}, not an object`];
  const inherited = type.bases.flatMap((base) => objectFaults(objectOf(named(base)), value, path));
  const own = type.fields.flatMap(({ name, isOptional, type: of }) => {
    const one = value[name];
    if (one === undefined) return isOptional ? [] : [`${path}.${name} is missing`];
    return faults(of, one, `${path}.${name}`);
  });
  return [...inherited, ...own];
}

/** Of several the one that the value's `type` names says what is wrong; types of our own are none of theirs. */
function unionFaults(of: readonly Type[], value: unknown, path: string): string[] {
  const each = of.flatMap(alternatives);
  const found = each.map((type) => faults(type, value, path));
  if (found.some((one) => one.length === 0)) return [];
  const word = isObject(value) ? value.type : undefined;
  if (typeof word === "string" && word.startsWith("tendon_")) return [];
  const meant = each.findIndex((type) => type.kind === "object" && wordOf(type) === word);
  if (word !== undefined && meant >= 0) return found[meant]!;
  return [`${path} is ${said(value)}, which is none of its ${each.length} types`];
}

function alternatives(type: Type): Type[] {
  if (type.kind === "named") return alternatives(named(type.name));
  return type.kind === "union" ? type.of.flatMap(alternatives) : [type];
}

/** The types of objects that a union tells apart by their `type`. */
export function wordsOf(name: string): ReadonlySet<string> {
  return new Set(alternatives({ kind: "named", name }).flatMap((type) => wordOf(type) ?? []));
}

function wordOf(type: Type): string | undefined {
  if (type.kind !== "object") return undefined;
  const field = type.fields.find(({ name }) => name === "type")?.type;
  return field?.kind === "literal" ? String(field.value) : undefined;
}

function named(name: string): Type {
  const known = types.get(name);
  if (known !== undefined) return known;
  const declaration = declarations().get(name);
  if (declaration === undefined) throw new Error(`the client declares no ${name}`);
  const { text, bases } = declaration;
  const read = new TypeReader(text).type();
  const type = read.kind === "object" ? { ...read, bases } : read;
  types.set(name, type);
  return type;
}

function objectOf(type: Type): Extract<Type, { kind: "object" }> {
  if (type.kind !== "object") throw new Error("only an interface can be extended");
  return type;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function said(value: unknown): string {
  return (JSON.stringify(value) ?? "undefined").slice(0, 200);
}
