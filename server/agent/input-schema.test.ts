import { expect, test } from "vitest";
import { isTendonError } from "../../kit/errors.ts";
import { checkInputSchema } from "./input-schema.ts";

/** The field that is wrong, or undefined when none is. */
function wrongField(schema: Record<string, unknown>): string | undefined {
  try {
    checkInputSchema("s", { type: "object", ...schema });
    return undefined;
  } catch (error) {
    if (isTendonError(error, "INVALID_FIELD")) return error.metadata.field;
    throw error;
  }
}

test.each<[string, Record<string, unknown>, string]>([
  ["a choice at the top", { oneOf: [{}] }, "s.oneOf"],
  ["any of several at the top", { anyOf: [] }, "s.anyOf"],
  ["all of several at the top", { allOf: [] }, "s.allOf"],
  ["a reference", { properties: { a: { $ref: "#/$defs/b" } } }, "s.properties.a.$ref"],
  [
    "a reference in a list",
    { properties: { a: { anyOf: [{}, { $ref: "b" }] } } },
    "s.properties.a.anyOf[1].$ref",
  ],
  ["a dynamic reference", { items: { $dynamicRef: "#b" } }, "s.items.$dynamicRef"],
  ["a name with a space", { properties: { "a b": {} } }, "s.properties"],
  [
    "a name of 65 letters, further down",
    { items: { properties: { ["a".repeat(65)]: {} } } },
    "s.items.properties",
  ],
  ["an empty name", { properties: { "": {} } }, "s.properties"],
])("%s is refused with its place", (_what, schema, field) => {
  expect(wrongField(schema)).toBe(field);
});

test("names and data are no keywords", () => {
  const properties = {
    properties: {
      type: "object",
      properties: { "a.b-c_1": { anyOf: [{ type: "string" }, { type: "null" }] } },
    },
    oneOf: { const: { $ref: "x" } },
    kinds: { enum: [{ $ref: "x" }], default: { "a b": 1 }, examples: [{ $ref: "x" }] },
    $defs: {},
  };
  expect(wrongField({ properties: { ...properties, $defs: undefined } })).toBe("s.properties");
  const { $defs: _, ...named } = properties;
  expect(wrongField({ properties: named, patternProperties: { "^a b$": {} }, $schema: "x" })).toBeUndefined();
});

test("a schema of any depth is looked through", () => {
  let schema: Record<string, unknown> = { $ref: "x" };
  for (let depth = 0; depth < 20_000; depth++) schema = { items: schema };
  expect(wrongField(schema)).toMatch(/^s(\.items)+\.\$ref$/);
});
