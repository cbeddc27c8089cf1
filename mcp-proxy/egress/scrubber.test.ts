import { expect, test } from "vitest";
import { Scrubber } from "./scrubber.ts";

const VALUE = `sk/live+"0123' <é>&\\==`;

function whole(text: string, values: readonly string[] = [VALUE]): string {
  const scrubber = new Scrubber(values);
  return Buffer.concat([scrubber.push(Buffer.from(text)), scrubber.end()]).toString();
}

test("a value is found as it is, and as JSON, HTML and URLs write it", () => {
  const json = JSON.stringify(VALUE).slice(1, -1);
  const html = "sk/live+&quot;0123&#39; &lt;é&gt;&amp;\\==";
  for (const spelling of [
    VALUE,
    json,
    json.replaceAll("/", "\\/"),
    json.replace("é", "\\u00e9"),
    html,
    encodeURIComponent(VALUE),
    encodeURIComponent(VALUE).replaceAll("%20", "+"),
    encodeURIComponent(VALUE).replace(/%../g, (code) => code.toLowerCase()),
    // Go, Rails, .NET, and Python's templates and quote.
    json.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    json.replace(/[<>&'+é]/g, (char) => `\\u${code(char)}`).replace('\\"', "\\u0022"),
    html.replace("&#39;", "&#x27;"),
    html.replaceAll("&quot;", "&#34;").replace("+", "&#43;"),
    encodeURIComponent(VALUE).replaceAll("%2F", "/"),
    encodeURIComponent(VALUE).replace("'", "%27").replaceAll("%20", "+"),
  ]) {
    expect([spelling, whole(`a ${spelling} b`)]).toEqual([spelling, "a [redacted] b"]);
  }
});

function code(char: string): string {
  return char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
}

test("a value is found in base64 wherever it begins, but for what belongs to its neighbours", () => {
  const long = "canary-0123456789-abcdef";
  for (const before of ["", "a", "ab", "abc", "user:"]) {
    for (const after of ["", "z", "zz"]) {
      for (const coding of ["base64", "base64url"] as const) {
        const said = whole(Buffer.from(before + long + after).toString(coding), [long]);
        expect(said).toContain("[redacted]");
        // Two characters of base64 at each end hold bits of both.
        expect(Buffer.from(said.replace("[redacted]", ""), "base64").toString("latin1")).not.toMatch(
          /0123|cdef/,
        );
      }
    }
  }
});

test("a value is found across any cut, and only what may be its beginning is held back", () => {
  const text = Buffer.from(`one ${VALUE} two ${VALUE}${VALUE} sk/li three`);
  for (let cut = 0; cut <= text.length; cut++) {
    const scrubber = new Scrubber([VALUE]);
    const parts = [scrubber.push(text.subarray(0, cut)), scrubber.push(text.subarray(cut)), scrubber.end()];
    expect(Buffer.concat(parts).toString()).toBe("one [redacted] two [redacted][redacted] sk/li three");
  }
  const scrubber = new Scrubber([VALUE]);
  expect(scrubber.push(Buffer.from("data: sk")).toString()).toBe("data: ");
  expect(scrubber.push(Buffer.from("ip\n")).toString()).toBe("skip\n");
  expect(scrubber.end().toString()).toBe("");
});

test("of two values one of which is part of the other the longer is taken out, and short ones are left", () => {
  expect(whole("a secret-longer b secret c", ["secret", "secret-longer"])).toBe(
    "a [redacted] b [redacted] c",
  );
  expect(new Scrubber(["short"]).isIdle).toBe(true);
  expect(whole("short", ["short"])).toBe("short");
});

test("a value that holds another is taken out whole, across any cut", () => {
  const values = ["secret", "secret-longer", "my-secret-longest"];
  const said =
    "secret secret-longer my-secret-longest secret-longe my-secret-secret-longer my-my-secret-longest";
  const clean = "[redacted] [redacted] [redacted] [redacted]-longe my-[redacted]-[redacted] my-[redacted]";
  expect(whole(said, values)).toBe(clean);
  const others = new Set<string>();
  for (let cut = 0; cut <= said.length; cut += 1) {
    for (let second = cut; second <= said.length; second += 1) {
      const scrubber = new Scrubber(values);
      const pieces = [said.slice(0, cut), said.slice(cut, second), said.slice(second)];
      const done = pieces.map((piece) => scrubber.push(Buffer.from(piece)));
      const text = Buffer.concat([...done, scrubber.end()]).toString();
      if (text !== clean) others.add(text);
    }
  }
  expect([...others]).toEqual([]);
});
