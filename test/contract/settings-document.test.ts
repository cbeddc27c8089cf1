import { expect, test } from "vitest";
import { readDocument, renderSettings } from "./settings-document.ts";

test("docs/settings.md says what the programs' tables say; npm run docs:settings brings it up to date", async () => {
  expect(readDocument()).toBe(await renderSettings());
});
