import { expect, test } from "vitest";
import { mediaTypeOf } from "./media-type.ts";

test.each([
  ["report.md", "text/markdown"],
  ["out/Sales.CSV", "text/csv"],
  ["archive.tar.gz", "application/gzip"],
  ["no-end", "application/octet-stream"],
  [".json", "application/octet-stream"],
  ["x.constructor", "application/octet-stream"],
])("the name %s says %s", (path, type) => {
  expect(mediaTypeOf(path)).toBe(type);
});
