/** What a model API takes as the input of a custom tool (pure): what it refuses would fail every request of every session. */
import { invalidField } from "../../kit/errors.ts";

type Json = Record<string, unknown>;

/** Nobody resolves them on the way to a model. */
const REFERENCES = new Set(["$ref", "$dynamicRef", "$recursiveRef"]);
const NOT_AT_THE_TOP = ["oneOf", "anyOf", "allOf"];
const PROPERTY_NAME = /^[A-Za-z0-9_.-]{1,64}$/;
/** Their keys are names, not keywords. */
const NAMED = new Set(["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"]);
/** What they hold is data, not a schema. */
const DATA = new Set(["const", "enum", "default", "examples"]);

/** Throws INVALID_FIELD with the path of what does not fit. */
export function checkInputSchema(path: string, schema: Json): void {
  if (schema.type !== "object") throw invalidField(path, `its "type" must be "object"`);
  const choice = NOT_AT_THE_TOP.find((keyword) => Object.hasOwn(schema, keyword));
  if (choice !== undefined) throw invalidField(`${path}.${choice}`, "is not taken at the top of a schema");
  // No recursion: a schema may be as deep as a request can hold.
  const rest: { readonly value: unknown; readonly at: string; readonly isNames: boolean }[] = [
    { value: schema, at: path, isNames: false },
  ];
  for (let next = rest.pop(); next !== undefined; next = rest.pop()) {
    const { value, at, isNames } = next;
    if (typeof value !== "object" || value === null) continue;
    for (const [key, inner] of Object.entries(value)) {
      const here = Array.isArray(value) ? `${at}[${key}]` : `${at}.${key}`;
      if (isNames) checkName(at, key);
      else if (REFERENCES.has(key))
        throw invalidField(here, "references are not taken; write out what is meant");
      else if (DATA.has(key)) continue;
      rest.push({ value: inner, at: here, isNames: !isNames && !Array.isArray(value) && NAMED.has(key) });
    }
  }
}

function checkName(at: string, name: string): void {
  if (!at.endsWith(".properties") || PROPERTY_NAME.test(name)) return;
  const message = `a property's name has 1 to 64 letters, digits, "_", "." and "-", unlike "${name.slice(0, 80)}"`;
  throw invalidField(at, message);
}
