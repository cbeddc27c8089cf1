import { expect, test } from "vitest";
import { pageOf, shows, textsOf, wordOf } from "./url-sources.ts";

const PAGE = "https://a.example.com/b?c=d";

test.each([
  PAGE,
  `see ${PAGE}.`,
  `(${PAGE}), or`,
  `[b](${PAGE})`,
  `the rest [${PAGE}]`,
  `<${PAGE}>`,
  `"${PAGE}#part"`,
  `'${PAGE}'`,
  `${PAGE},https://other.example.com`,
  "HTTPS://A.Example.Com:443/b?c=d",
  `https://cache.example.org/${PAGE}`,
  `ここ：${PAGE}。`,
])("a text shows the page: %s", (text) => {
  expect(shows(text, PAGE)).toBe(true);
});

test.each([
  "a.example.com/b?c=d",
  "http://a.example.com/b?c=d",
  `${PAGE}e`,
  "https://a.example.com/b",
  "https://a.example.com/b ?c=d",
  "https://x.a.example.com/b?c=d",
])("a text does not show it: %s", (text) => {
  expect(shows(text, PAGE)).toBe(false);
});

test("names in other letters are found in both spellings, by a word that both have", () => {
  const page = pageOf("https://bücher.example.com/")!;
  expect(shows("https://xn--bcher-kva.example.com", page)).toBe(true);
  expect(shows("https://BÜCHER.example.com/", page)).toBe(true);
  expect(wordOf(new URL(page))).toBe("example");
  expect(pageOf("no url")).toBeUndefined();
});

test("texts, titles and sources are what is looked through, and nothing of files or of errors", () => {
  const content = [
    { type: "text", text: "1" },
    { type: "search_result", source: "2", title: "3", content: [{ type: "text", text: "4" }] },
    { type: "document", source: { type: "text", media_type: "text/plain", data: "5" }, context: "6" },
    { type: "image", source: { type: "url", url: "7" } },
    { type: "document", source: { type: "base64", data: "no" } },
  ];
  const textsOfPayload = (payload: object) =>
    textsOf({
      type: "user.custom_tool_result",
      payload: JSON.stringify(payload),
      call: undefined,
      cursor: { sessionId: "", position: 1 },
    }).sort();
  expect(textsOfPayload({ content })).toEqual(["1", "2", "3", "4", "5", "6", "7"]);
  expect(textsOfPayload({ content: "8" })).toEqual(["8"]);
  expect(textsOfPayload({ description: "9" })).toEqual(["9"]);
  expect(textsOfPayload({ content, is_error: true })).toEqual([]);
});
