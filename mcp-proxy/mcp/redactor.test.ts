import { expect, test } from "vitest";
import { Redactor } from "./redactor.ts";

const SECRET = 'canary/tok"en-0123456789';

function redacted(parts: readonly string[], secrets: readonly string[] = [SECRET]): string {
  const redactor = new Redactor(secrets);
  const out = parts.map((part) => redactor.push(Buffer.from(part)));
  return Buffer.concat([...out, redactor.end()]).toString();
}

const json = JSON.stringify(SECRET).slice(1, -1);
const unicode = [...SECRET].map((char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`).join("");
const FORMS: Readonly<Record<string, string>> = {
  plain: SECRET,
  "escaped as JSON": json,
  "with escaped slashes": json.replace("/", "\\/"),
  "JSON inside JSON": JSON.stringify(json).slice(1, -1),
  "escaped letter by letter": unicode,
  "in capitals": unicode.toUpperCase().replaceAll("\\U", "\\u"),
  "escaped for a URL": encodeURIComponent(SECRET),
};

test("a value is taken out in every spelling, wherever chunks meet in it", () => {
  for (const [name, form] of Object.entries(FORMS)) {
    const text = `{"text":"before ${form} after ${form}"}`;
    const expected = '{"text":"before [redacted] after [redacted]"}';
    expect([name, redacted([text])]).toEqual([name, expected]);
    expect([name, redacted([...text])]).toEqual([name, expected]);
    for (let cut = 1; cut < text.length; cut += 3) {
      expect(redacted([text.slice(0, cut), text.slice(cut)])).toBe(expected);
    }
  }
});

test("a value with backslashes or percent signs of its own is taken out, and not a byte besides", () => {
  for (const secret of [
    "canary\\tok\\\\en-0123",
    "canary-0123456789%a",
    "canary-0123456789%",
    'canary+/"\\a%4',
  ]) {
    const once = JSON.stringify({ key: secret, next: 1 });
    for (const text of [once, JSON.stringify(once), JSON.stringify(JSON.stringify(once))]) {
      for (const parts of [[text], [...text]]) {
        let value: unknown = redacted(parts, [secret]);
        while (typeof value === "string") value = JSON.parse(value);
        expect(value).toEqual({ key: "[redacted]", next: 1 });
      }
    }
  }
});

test("what is no value stays byte for byte, also where it begins like one", () => {
  const texts = [
    `canary/tok and canary/tok"en-012345678, ${"\\\\".repeat(50)} 100% %zz %4 \\u00zz`,
    '{"a":"\\u0063anary","b":"caf\u00e9 \u{1f600}"}',
    `${SECRET.slice(0, -1)}${SECRET.slice(0, -1)}`,
  ];
  for (const text of texts) {
    expect(redacted([text])).toBe(text);
    expect(redacted([...text])).toBe(text);
  }
});

test("bytes wait only while they may be the beginning of a value", () => {
  const redactor = new Redactor([SECRET]);
  expect(redactor.push(Buffer.from('data: {"x":1}\n\n')).toString()).toBe('data: {"x":1}\n\n');
  expect(redactor.push(Buffer.from("data: can")).toString()).toBe("data: ");
  expect(redactor.push(Buffer.from("not\n\n")).toString()).toBe("cannot\n\n");
});

test("values that are parts of one another leave nothing of the longer one", () => {
  const secrets = ["sk-long-secret-value", "secret-value"];
  expect(redacted(["a sk-long-secret-value b secret-value c"], secrets)).toBe("a [redacted] b [redacted] c");
});
