import { expect, test } from "vitest";
import { FormDigest } from "./form-digest.ts";

type Part =
  | { name: string; value: string }
  | { name: string; filename: string; mimeType: string; chunks: string[] };

async function digestOf(parts: readonly Part[]): Promise<string> {
  const digest = new FormDigest();
  for (const part of parts) {
    if ("value" in part) digest.field(part);
    else {
      const bytes = async function* () {
        for (const chunk of part.chunks) yield Buffer.from(chunk);
      };
      for await (const _ of digest.file(part, bytes()));
    }
  }
  return digest.end();
}

const file = { name: "file", filename: "a.txt", mimeType: "text/plain", chunks: ["hello"] };
const field = { name: "expires_in_seconds", value: "3600" };

test("forms of the same parts are the same, however their bytes came", async () => {
  const digest = await digestOf([field, file]);
  expect(await digestOf([field, { ...file, chunks: ["he", "", "llo"] }])).toBe(digest);
});

test.each<[string, Part[]]>([
  ["another order", [file, field]],
  ["another value", [{ ...field, value: "3601" }, file]],
  ["another name", [{ ...field, name: "expires" }, file]],
  ["another file name", [field, { ...file, filename: "b.txt" }]],
  ["another type", [field, { ...file, mimeType: "text/html" }]],
  ["other bytes", [field, { ...file, chunks: ["hello", "!"] }]],
  ["one part less", [file]],
  ["the file's bytes in a field", [field, { name: "file", value: "hello" }]],
])("a form of %s is another", async (_what, parts) => {
  expect(await digestOf(parts)).not.toBe(await digestOf([field, file]));
});

test("what was not read to its end has no digest", async () => {
  const digest = new FormDigest();
  for await (const _ of digest.file(
    file,
    (async function* () {
      yield Buffer.from("a");
      yield Buffer.from("b");
    })(),
  ))
    break;
  expect(() => digest.end()).toThrow("not read to its end");
});
