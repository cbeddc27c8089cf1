/**
 * Takes values out of what a host answers, as it streams by, also where chunks meet inside of one: as they are, as JSON, HTML
 * and URLs write them, and as base64. Bytes are held back only while they may be the beginning of a value. It is for hosts that
 * repeat what they were sent; one that means to hand a value on can write it in some other way.
 *
 * Searching for whole spellings instead of decoding byte by byte (as mcp/redactor.ts does, for messages) is what makes it fast
 * enough for downloads.
 */

export const SCRUBBED = "[redacted]";
const MARK = Buffer.from(SCRUBBED);
/** Shorter values are part of too many other words. */
const LEAST_CHARS = 6;
/** Of base64, whose first and last characters may belong to what stands around the value. */
const LEAST_BASE64_CHARS = 8;
const GROUP = 3;

/** All spellings of these values that are looked for, the longest first: one that is part of another is found after it. */
function spellingsOf(values: readonly string[]): string[] {
  const all = values
    .filter((value) => value.length >= LEAST_CHARS)
    .flatMap((value) => [value, ...asTexts(value), ...asBase64(value)]);
  return [...new Set(all)].sort((one, other) => other.length - one.length);
}

function asTexts(value: string): string[] {
  return [...asJson(value), ...asHtml(value), ...asUrl(value)];
}

/** What libraries write as \\uXXXX though they need not: others than ASCII, what HTML could read (Go, Rails), and more (.NET). */
const JSON_ESCAPED = [
  /(?!)/g,
  /[\u007f-\uffff]/g,
  /[<>&\u2028\u2029]/g,
  /[<>&\u007f-\uffff]/g,
  /[<>&'+`\u007f-\uffff]/g,
];

function asJson(value: string): string[] {
  const json = JSON.stringify(value).slice(1, -1);
  return JSON_ESCAPED.flatMap((which) => {
    const lower = json.replace(which, unicodeEscape);
    // Escapes alone: JSON.stringify has written the others, in lower case.
    const upper = json
      .replace(/\\u[0-9a-f]{4}/g, (code) => `\\u${code.slice(2).toUpperCase()}`)
      .replace(which, (char) => `\\u${unicodeEscape(char).slice(2).toUpperCase()}`);
    const quoted = [lower, upper, upper.replaceAll('\\"', "\\u0022")];
    return quoted.flatMap((text) => [text, text.replaceAll("/", "\\/")]);
  });
}

function unicodeEscape(char: string): string {
  return `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
}

function asHtml(value: string): string[] {
  const some = value.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const quotes = [
    ["&quot;", "'"],
    ["&quot;", "&#39;"],
    ["&quot;", "&#x27;"],
    ["&quot;", "&#039;"],
    ["&#34;", "&#39;"],
  ] as const;
  const texts = quotes.map(([double, single]) => some.replaceAll('"', double).replaceAll("'", single));
  return [
    some,
    ...texts,
    // Templates of Go and of Handlebars.
    ...texts.map((text) => text.replaceAll("+", "&#43;")),
    ...texts.map((text) => text.replaceAll("+", "&#43;").replace(/=/g, "&#61;")),
    ...texts.map((text) => text.replaceAll("=", "&#x3D;").replaceAll("`", "&#x60;")),
  ];
}

/** Libraries differ in what they leave: `!'()*` (JavaScript), or `/` (Python), or both, or none of these. */
function asUrl(value: string): string[] {
  const url = percentEncoded(value);
  const strict = url.replace(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`);
  const all = [url, strict].flatMap((text) => [text, text.replaceAll("%2F", "/")]);
  return all
    .flatMap((text) => [
      text,
      text.replaceAll("%20", "+"),
      text.replaceAll("~", "%7E").replaceAll("%20", "+"),
    ])
    .flatMap((text) => [text, text.replace(/%[0-9A-F]{2}/g, (code) => code.toLowerCase())]);
}

/** A value with half a surrogate pair has no such form. */
function percentEncoded(value: string): string {
  try {
    return encodeURIComponent(value);
  } catch {
    return value;
  }
}

/** Wherever the value begins within a group of three bytes, without the characters that hold bits of its neighbours. */
function asBase64(value: string): string[] {
  const bytes = Buffer.from(value, "utf8");
  const cores = [0, 1, 2].map((before) => {
    const encoded = Buffer.concat([Buffer.alloc(before), bytes])
      .toString("base64")
      .replace(/=+$/, "");
    const from = before === 0 ? 0 : before + 1;
    const whole = (before + bytes.length) % GROUP === 0;
    return encoded.slice(from, whole ? undefined : -1);
  });
  return cores
    .flatMap((core) => [core, core.replaceAll("+", "-").replaceAll("/", "_")])
    .filter((core) => core.length >= LEAST_BASE64_CHARS);
}

export class Scrubber {
  private readonly spellings: readonly Buffer[];
  /** In lower case, as names of headers come. */
  private readonly inNames: readonly string[];
  /** What may be the beginning of a value. */
  private held: Buffer = Buffer.alloc(0);

  constructor(values: readonly string[]) {
    const spellings = spellingsOf(values);
    this.spellings = spellings.map((spelling) => Buffer.from(spelling, "utf8"));
    this.inNames = spellings.map((spelling) => spelling.toLowerCase());
  }

  get isIdle(): boolean {
    return this.spellings.length === 0;
  }

  /** What may go on by now. */
  push(chunk: Buffer): Buffer {
    const bytes = this.held.length === 0 ? chunk : Buffer.concat([this.held, chunk]);
    const { done, rest } = this.scrub(bytes, true);
    // A copy: the chunk that it lies in may be used again.
    this.held = rest.length === 0 ? rest : Buffer.from(rest);
    return done;
  }

  /** The rest, at the end. */
  end(): Buffer {
    const { done } = this.scrub(this.held, false);
    this.held = Buffer.alloc(0);
    return done;
  }

  /** Whether a header's name, in lower case, holds a value: nothing can stand in its place there. */
  isInName(name: string): boolean {
    return this.inNames.some((spelling) => name.includes(spelling));
  }

  /** Of a header, for one. */
  text(whole: string): string {
    if (this.isIdle) return whole;
    return this.scrub(Buffer.from(whole, "latin1"), false).done.toString("latin1");
  }

  private scrub(bytes: Buffer, goesOn: boolean): { done: Buffer; rest: Buffer } {
    const next = this.spellings.map((spelling) => bytes.indexOf(spelling));
    const parts: Buffer[] = [];
    let at = 0;
    let end = goesOn ? this.beginsAt(bytes, 0) : bytes.length;
    for (;;) {
      const found = this.first(next);
      const from = found === undefined ? bytes.length : (next[found] ?? 0);
      // What begins there may yet be a longer one, of which this is a part.
      if (found === undefined || from >= end) break;
      parts.push(bytes.subarray(at, from), MARK);
      at = from + (this.spellings[found]?.length ?? 0);
      for (const [index, spelling] of this.spellings.entries()) {
        const place = next[index] ?? -1;
        if (place >= 0 && place < at) next[index] = bytes.indexOf(spelling, at);
      }
      if (end < at) end = this.beginsAt(bytes, at);
    }
    parts.push(bytes.subarray(at, end));
    return {
      done: parts.length === 1 ? (parts[0] ?? bytes) : Buffer.concat(parts),
      rest: bytes.subarray(end),
    };
  }

  /** The one that comes first; of two at one place the longer. */
  private first(next: readonly number[]): number | undefined {
    let found: number | undefined;
    for (const [index, place] of next.entries()) {
      if (place >= 0 && (found === undefined || place < (next[found] ?? 0))) found = index;
    }
    return found;
  }

  /** Where the end of these bytes may be the beginning of a value; their length where it is none. */
  private beginsAt(bytes: Buffer, from: number): number {
    let earliest = bytes.length;
    for (const spelling of this.spellings) {
      const first = spelling[0] ?? 0;
      const start = Math.max(from, bytes.length - spelling.length + 1);
      for (
        let at = bytes.indexOf(first, start);
        at >= 0 && at < earliest;
        at = bytes.indexOf(first, at + 1)
      ) {
        if (bytes.compare(spelling, 0, bytes.length - at, at) === 0) earliest = at;
      }
    }
    return earliest;
  }
}
