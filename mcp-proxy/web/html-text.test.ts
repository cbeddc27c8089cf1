import { expect, test } from "vitest";
import { htmlText } from "./html-text.ts";

const NEVER = new AbortController().signal;
const read = (html: string) => htmlText(html, "https://example.com/dir/page", NEVER);
const textOf = async (html: string) => (await read(html)).text;

test("what people read of a page becomes lines, with headings, lists, cells and where links lead", async () => {
  const html = `<!doctype html><html><head><title> Tea
    &amp; time </title><style>p{}</style></head><body><nav><a href="/">Home</a></nav>
    <h2>How   long</h2><p>Three <b>min</b>utes,<br>see <a href="more?x=1#y">the rest</a>.</p>
    <ul><li>green<ul><li>sencha</ul><li>black</ul><ol><li>boil<li>wait</ol>
    <table><tr><th>a<th>b<tr><td>1<td>2</table><pre>x  y
 z</pre><div>one</div><div>two</div></body></html>`;
  expect(await read(html)).toEqual({
    title: "Tea & time",
    text: `Home [https://example.com/]

## How long

Three minutes,
see the rest [https://example.com/dir/more?x=1#y].

- green
  - sencha
- black

1. boil
2. wait

a | b
1 | 2

x  y
 z

one
two`,
    isCut: false,
  });
});

test("programs, frames and what fills forms are left out, and links that lead to no other page are words", async () => {
  const hidden = ["script", "style", "noscript", "template", "iframe", "svg", "textarea", "select"];
  const html = hidden.map((name) => `<${name}>canary</${name}>`).join("");
  expect(await textOf(`a ${html} b`)).toBe("a b");
  const links = `<a href="#x">here</a> <a href="javascript:canary()">there</a> <a>anywhere</a> <a href="mailto:a@b">mail</a>`;
  expect(await textOf(links)).toBe("here there anywhere mail");
  expect(await textOf(`<a href="https://a.example/">https://a.example/</a>`)).toBe("https://a.example/");
});

test("no HTML is refused, however broken, and entities are read", async () => {
  expect(await textOf("a < b &lt;c&gt; &eacute; &#x1F600; &nope;")).toBe("a < b <c> é 😀 &nope;");
  expect(await textOf("</p></div>x<div><p>y")).toBe("x\n\ny");
  expect(await textOf("")).toBe("");
});

test("a page that is too long or nested too deep is left where that is known", async () => {
  expect(await read(`x${"<div>".repeat(200_000)}y`)).toEqual({ title: "", text: "x", isCut: true });
  const long = await read("<p>word</p>".repeat(200_000));
  expect(long.isCut).toBe(true);
  expect(long.text.length).toBeLessThan(300_000);
});

test("a page is read in pieces: whoever ends the call is heard in between", async () => {
  const ending = new AbortController();
  const reading = htmlText("<p>word</p>".repeat(20_000), "https://example.com/", ending.signal);
  ending.abort(new Error("given up"));
  await expect(reading).rejects.toThrow("given up");
});
