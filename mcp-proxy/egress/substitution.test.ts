import { expect, test } from "vitest";
import { placeholderOf, placeholdersIn, replacePlaceholders } from "../../kit/vault/placeholder.ts";
import { EgressRefusal } from "./refusal.ts";
import type { Headers } from "./request-head.ts";
import { placeholdersInHeaders, substituteInBody, substituteInHeaders } from "./substitution.ts";

const A = placeholderOf("A");
const values: Record<string, string> = { A: 'v"1&é', LONG: "x".repeat(16_000), LINES: "one\ntwo" };
const valueFor = (name: string) => values[name];

function headersWith(value: string): { headers: Headers; sent: string[] } {
  const sent: string[] = [];
  const headers = substituteInHeaders(new Map([["h", [value]]]), valueFor, (text) => sent.push(text));
  return { headers, sent };
}

test("a placeholder says its variable, and text that only looks like one is left alone", () => {
  expect(placeholdersIn(`x${A}y ${placeholderOf("A_B")} ${A}`)).toEqual(["A", "A_B"]);
  const wrong = A.replace(/-[0-9a-f]{12}$/, "-000000000000");
  expect(placeholdersIn(`${wrong} tendon-placeholder-`)).toEqual([]);
  expect(replacePlaceholders(`${A}${wrong}${placeholderOf("OTHER")}`, valueFor)).toBe(
    `${values.A}${wrong}${placeholderOf("OTHER")}`,
  );
});

test("headers get values as UTF-8, Basic credentials within, and what is no Basic stays", () => {
  expect(Buffer.from(headersWith(`Bearer ${A}`).headers.get("h")![0]!, "latin1").toString()).toBe(
    `Bearer ${values.A}`,
  );
  const basic = `Basic ${Buffer.from(`${A}:pw`).toString("base64")}`;
  expect(placeholdersInHeaders(new Map([["authorization", [basic]]]))).toEqual(["A"]);
  const { headers, sent } = headersWith(basic);
  expect(Buffer.from(headers.get("h")![0]!.slice(6), "base64").toString()).toBe(`${values.A}:pw`);
  expect(sent).toEqual([headers.get("h")![0]!.slice(6)]);
  const untouched = `basic  ${Buffer.from("user:pw").toString("base64")}`;
  expect(headersWith(untouched).headers.get("h")).toEqual([untouched]);
});

test("a value that would begin another header is refused without being told, and so is too much of it", () => {
  for (const text of [placeholderOf("LINES"), placeholderOf("LONG").repeat(9)]) {
    expect(() => headersWith(text)).toThrow(EgressRefusal);
    expect(() => headersWith(text)).not.toThrow(/two|xxx/);
  }
  const body = Buffer.from(placeholderOf("LONG").repeat(300));
  expect(() => substituteInBody(body, "text/plain", valueFor)).toThrow(/too large/);
});

test("JSON and forms stay what they are, and bytes that are no text stay too", () => {
  const json = substituteInBody(Buffer.from(`{"k":"${A}"}`), "application/json; charset=utf-8", valueFor);
  expect(JSON.parse(json.toString())).toEqual({ k: values.A });
  const form = substituteInBody(Buffer.from(`k=${A}&l=1`), "application/x-www-form-urlencoded", valueFor);
  expect(Object.fromEntries(new URLSearchParams(form.toString()))).toEqual({ k: values.A, l: "1" });
  const bytes = Buffer.concat([Buffer.from([0, 0xff, 0xfe]), Buffer.from(A), Buffer.from([0xc3, 0])]);
  expect(substituteInBody(bytes, "", valueFor)).toEqual(
    Buffer.concat([Buffer.from([0, 0xff, 0xfe]), Buffer.from(values.A!), Buffer.from([0xc3, 0])]),
  );
});
