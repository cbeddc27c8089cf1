/** What messages hold and should not, looked for before the rules of their fields are (pure). */
import { type DescField, type DescMessage, getOption, type Message, ScalarType } from "@bufbuild/protobuf";
import { field as fieldRules } from "../../proto/gen/buf/validate/validate_pb.js";

export interface Unfit {
  readonly path: string;
  readonly problem: string;
}

const SURROGATE = /\p{Surrogate}/u;
const INT32 = { from: -(2 ** 31), to: 2 ** 31 - 1 };
const UINT32 = { from: 0, to: 2 ** 32 - 1 };
const RANGES: Partial<Record<ScalarType, typeof INT32>> = {
  [ScalarType.INT32]: INT32,
  [ScalarType.SINT32]: INT32,
  [ScalarType.SFIXED32]: INT32,
  [ScalarType.UINT32]: UINT32,
  [ScalarType.FIXED32]: UINT32,
};

const TIMESTAMP = "google.protobuf.Timestamp";
/** Years 1 to 9999. */
const FIRST_SECOND = -62_135_596_800n;
const LAST_SECOND = 253_402_300_799n;
const SECOND_NANOS = 1_000_000_000;

type Values = Readonly<Record<string, unknown>>;

/** Of a message that came over no wire: the first text that is none, or number that its field cannot have. */
export function unfitForWire(desc: DescMessage, message: Message): Unfit | undefined {
  return firstIn(desc, message as unknown as Values, scalarProblem);
}

/**
 * The first list or map with more entries than its field may have. Looked for before anything else: the rules of the fields
 * are asked of every entry, and would hold everybody up for as long as it takes to read a million of them.
 */
export function tooMany(desc: DescMessage, message: Message): Unfit | undefined {
  return tooManyIn(desc, message as unknown as Values);
}

/** The first time that there is not, wherever it came from. */
export function unfitTime(desc: DescMessage, message: Message): Unfit | undefined {
  return holdsTimes(desc) ? firstIn(desc, message as unknown as Values, () => undefined) : undefined;
}

type ScalarRule = (scalar: ScalarType, value: unknown) => string | undefined;

function scalarProblem(scalar: ScalarType, value: unknown): string | undefined {
  if (scalar === ScalarType.STRING && typeof value === "string" && SURROGATE.test(value))
    return "holds half a surrogate pair, which is no text";
  const range = RANGES[scalar];
  if (range === undefined || typeof value !== "number") return undefined;
  const fits = Number.isInteger(value) && value >= range.from && value <= range.to;
  return fits ? undefined : `must be a whole number from ${range.from} to ${range.to}`;
}

function firstIn(desc: DescMessage, message: Values, rule: ScalarRule): Unfit | undefined {
  if (desc.typeName === TIMESTAMP) return timeProblem(message);
  for (const field of desc.fields) {
    const value = valueIn(field, message);
    if (value === undefined || value === null) continue;
    const found = ofField(field, value, (one) => ofOne(field, one, rule), rule);
    if (found !== undefined) return below(field.name, found);
  }
  return undefined;
}

function valueIn({ localName, oneof }: DescField, message: Values): unknown {
  if (oneof === undefined) return message[localName];
  const chosen = message[oneof.localName] as { case?: string; value?: unknown } | undefined;
  return chosen?.case === localName ? chosen.value : undefined;
}

type Look = (value: unknown) => Unfit | undefined;

/** Paths are made for what is found alone: most of what is looked at fits. */
function ofField(field: DescField, value: unknown, look: Look, keyRule?: ScalarRule): Unfit | undefined {
  if (field.fieldKind === "list") {
    for (const [at, item] of (value as unknown[]).entries()) {
      const found = look(item);
      if (found !== undefined) return below(`[${at}]`, found);
    }
    return undefined;
  }
  if (field.fieldKind !== "map") return look(value);
  for (const [key, item] of Object.entries(value as Values)) {
    const problem = field.mapKey === ScalarType.STRING ? keyRule?.(field.mapKey, key) : undefined;
    if (problem !== undefined) return { path: "", problem };
    const found = look(item);
    if (found !== undefined) return below(`[${JSON.stringify(key)}]`, found);
  }
  return undefined;
}

function ofOne(field: DescField, value: unknown, rule: ScalarRule): Unfit | undefined {
  if (field.message !== undefined) return firstIn(field.message, value as Values, rule);
  const problem = field.scalar === undefined ? undefined : rule(field.scalar, value);
  return problem === undefined ? undefined : { path: "", problem };
}

function below(step: string, { path, problem }: Unfit): Unfit {
  return { path: path === "" || path.startsWith("[") ? step + path : `${step}.${path}`, problem };
}

function timeProblem({ seconds, nanos }: Values): Unfit | undefined {
  const isTime = typeof seconds === "bigint" && seconds >= FIRST_SECOND && seconds <= LAST_SECOND;
  if (isTime && typeof nanos === "number" && nanos >= 0 && nanos < SECOND_NANOS) return undefined;
  return { path: "", problem: "must be a time between the years 1 and 9999" };
}

const TIMED = new Map<DescMessage, boolean>();

/** Most requests hold none, and need no look. */
function holdsTimes(desc: DescMessage): boolean {
  const known = TIMED.get(desc) ?? reachesTime(desc, new Set());
  TIMED.set(desc, known);
  return known;
}

function reachesTime(desc: DescMessage, seen: Set<DescMessage>): boolean {
  if (desc.typeName === TIMESTAMP) return true;
  if (seen.has(desc)) return false;
  seen.add(desc);
  return desc.fields.some(({ message }) => message !== undefined && reachesTime(message, seen));
}

interface Container {
  readonly field: DescField;
  readonly most: number;
}

const CONTAINERS = new Map<DescMessage, readonly Container[]>();

/** Fields that hold more than one value, each with the most that it may hold. */
function containersOf(desc: DescMessage): readonly Container[] {
  const known = CONTAINERS.get(desc);
  if (known !== undefined) return known;
  const made = desc.fields
    .filter(({ fieldKind, message }) => fieldKind === "list" || fieldKind === "map" || message !== undefined)
    .map((field) => ({ field, most: mostOf(field) }));
  CONTAINERS.set(desc, made);
  return made;
}

function mostOf(field: DescField): number {
  const { type } = getOption(field, fieldRules);
  const most =
    type.case === "repeated" ? type.value.maxItems : type.case === "map" ? type.value.maxPairs : 0n;
  return most === 0n ? Number.POSITIVE_INFINITY : Number(most);
}

function tooManyIn(desc: DescMessage, message: Values): Unfit | undefined {
  for (const { field, most } of containersOf(desc)) {
    const value = valueIn(field, message);
    if (value === undefined || value === null) continue;
    if (countOf(field, value) > most)
      return { path: field.name, problem: `must have at most ${most} entries` };
    const { message: inner } = field;
    if (inner === undefined) continue;
    const found = ofField(field, value, (one) => tooManyIn(inner, one as Values));
    if (found !== undefined) return below(field.name, found);
  }
  return undefined;
}

function countOf({ fieldKind }: DescField, value: unknown): number {
  if (fieldKind === "list") return (value as unknown[]).length;
  return fieldKind === "map" ? Object.keys(value as object).length : 1;
}
