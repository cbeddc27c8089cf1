import { deflateSync } from "node:zlib";
import { expect, test } from "vitest";
import { testPdf } from "../../test/kit/test-pdf.ts";
import { isPdf, pdfFacts } from "./pdf-facts.ts";

test("a PDF is known by its first bytes alone", () => {
  expect(isPdf(testPdf())).toBe(true);
  expect(isPdf(Buffer.from("\r\n %PDF-1.4"))).toBe(true);
  expect(isPdf(Buffer.from("\ufeff%PDF-2.0"))).toBe(true);
  expect(isPdf(Buffer.from("<p>%PDF-1.4"))).toBe(false);
  expect(isPdf(Buffer.from("%PDF"))).toBe(false);
  expect(isPdf(Buffer.alloc(0))).toBe(false);
});

test.each([1, 7, 700])("%i pages are counted, in the open and packed", async (pages) => {
  const facts = { isWhole: true, isEncrypted: false, pages };
  expect(await pdfFacts(testPdf({ pages, paddingBytes: 1_000 }))).toEqual(facts);
  expect(await pdfFacts(testPdf({ pages, paddingBytes: 1_000, isPacked: true }))).toEqual(facts);
});

test("it is told what is encrypted, what is broken off, and what says nothing of its pages", async () => {
  for (const isPacked of [false, true])
    expect(await pdfFacts(testPdf({ isEncrypted: true, isPacked }))).toMatchObject({ isEncrypted: true });
  expect(await pdfFacts(testPdf().subarray(0, 80))).toMatchObject({ isWhole: false });
  const silent = Buffer.from("%PDF-1.4\nstartxref\n0\n%%EOF");
  expect(await pdfFacts(silent)).toEqual({ isWhole: true, isEncrypted: false, pages: undefined });
});

test("what unpacks to more than anybody reads is left, and so are words that only look like pages", async () => {
  const bomb = deflateSync(Buffer.alloc(40 * 1024 * 1024));
  const parts = [
    "%PDF-1.5\n3 0 obj << /Type /ObjStm /Filter /FlateDecode >> stream\n",
    bomb,
    "\nendstream\n",
  ];
  const file = Buffer.concat([...parts, "startxref\n"].map((part) => Buffer.from(part)));
  expect(await pdfFacts(file)).toEqual({ isWhole: true, isEncrypted: false, pages: undefined });
  const many = Buffer.from(`%PDF-1.5 ${"<< /Type /Pages ".repeat(200_000)} startxref`);
  expect(await pdfFacts(many)).toMatchObject({ pages: undefined });
});

test("thousands of streams of no object, far into a file, are passed over at once", async () => {
  const streams = Buffer.from("/ObjStm stream\nendstream\n".repeat(6_000));
  const file = Buffer.concat([Buffer.from("%PDF-1.7\n"), Buffer.alloc(9_000_000, "x"), streams]);
  const tail = Buffer.from(testPdf({ pages: 3 }).toString("latin1").slice(9), "latin1");
  const began = process.cpuUsage();
  expect(await pdfFacts(Buffer.concat([file, tail]))).toMatchObject({ isWhole: true, pages: 3 });
  // A search back to the beginning for each of them took minutes.
  expect(process.cpuUsage(began).user / 1_000_000).toBeLessThan(10);
});

test("streams that turn out to be damaged count as much as they may have unpacked to", async () => {
  const damaged = deflateSync(Buffer.alloc(1024 * 1024));
  damaged.fill(0xff, damaged.length - 6);
  const stream = (packed: Buffer) =>
    Buffer.concat([
      Buffer.from("3 0 obj << /Type /ObjStm /Filter /FlateDecode >> stream\n"),
      packed,
      Buffer.from("\nendstream\n"),
    ]);
  const pages = deflateSync(Buffer.from("<< /Type /Pages /Count 5 >>"));
  const file = (count: number) =>
    Buffer.concat([
      Buffer.from("%PDF-1.5\n"),
      ...Array.from({ length: count }, () => stream(damaged)),
      stream(pages),
      Buffer.from("startxref\n"),
    ]);
  expect(await pdfFacts(file(3))).toMatchObject({ pages: 5 });
  expect(await pdfFacts(file(40))).toMatchObject({ pages: undefined });
});
