/** What a message may hold in memory and not on the wire, or what the wire takes and no time is (pure). */
import { type DescField, type DescMessage, type Message, ScalarType } from "@bufbuild/protobuf";

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
  return firstIn(desc, message as unknown as Values, scalarProblem, "");
}

/** The first time that there is not, wherever it came from. */
export function unfitTime(desc: DescMessage, message: Message): Unfit | undefined {
  return holdsTimes(desc) ? firstIn(desc, message as unknown as Values, () => undefined, "") : undefined;
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

function firstIn(desc: DescMessage, message: Values, rule: ScalarRule, path: string): Unfit | undefined {
  if (desc.typeName === TIMESTAMP) return timeProblem(message, path);
  for (const field of desc.fields) {
    const value = valueIn(field, message);
    if (value === undefined || value === null) continue;
    const found = ofField(field, value, rule, path === "" ? field.name : `${path}.${field.name}`);
    if (found !== undefined) return found;
  }
  return undefined;
}

function valueIn({ localName, oneof }: DescField, message: Values): unknown {
  if (oneof === undefined) return message[localName];
  const chosen = message[oneof.localName] as { case?: string; value?: unknown } | undefined;
  return chosen?.case === localName ? chosen.value : undefined;
}

function ofField(field: DescField, value: unknown, rule: ScalarRule, path: string): Unfit | undefined {
  if (field.fieldKind === "list") {
    for (const [at, item] of (value as unknown[]).entries()) {
      const found = ofOne(field, item, rule, `${path}[${at}]`);
      if (found !== undefined) return found;
    }
    return undefined;
  }
  if (field.fieldKind !== "map") return ofOne(field, value, rule, path);
  for (const [key, item] of Object.entries(value as Values)) {
    const problem = field.mapKey === ScalarType.STRING ? rule(field.mapKey, key) : undefined;
    if (problem !== undefined) return { path, problem };
    const found = ofOne(field, item, rule, `${path}[${JSON.stringify(key)}]`);
    if (found !== undefined) return found;
  }
  return undefined;
}

function ofOne(field: DescField, value: unknown, rule: ScalarRule, path: string): Unfit | undefined {
  if (field.message !== undefined) return firstIn(field.message, value as Values, rule, path);
  const problem = field.scalar === undefined ? undefined : rule(field.scalar, value);
  return problem === undefined ? undefined : { path, problem };
}

function timeProblem({ seconds, nanos }: Values, path: string): Unfit | undefined {
  const isTime = typeof seconds === "bigint" && seconds >= FIRST_SECOND && seconds <= LAST_SECOND;
  if (isTime && typeof nanos === "number" && nanos >= 0 && nanos < SECOND_NANOS) return undefined;
  return { path, problem: "must be a time between the years 1 and 9999" };
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
