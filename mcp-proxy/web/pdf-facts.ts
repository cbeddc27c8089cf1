/**
 * What has to be known of a PDF before a model API is sent one: whether it is encrypted, and how many pages it has (pure but
 * for unpacking). It looks for the few words that say so and understands nothing else of the file: a page's author must not
 * be able to keep this process busy or fill its memory, as what a whole parser unpacks can. What it misses, the model API
 * finds.
 */
import { promisify } from "node:util";
import { constants, inflate } from "node:zlib";

export interface PdfFacts {
  /** It has the end that every PDF has: what lacks it is damaged, or only begins like one. */
  readonly isWhole: boolean;
  readonly isEncrypted: boolean;
  /** Undefined where the file does not say it in a way that is understood here. */
  readonly pages: number | undefined;
}

/** The head of every PDF. Some write a mark or spaces before it, which readers pass over. */
const HEAD = /^(\xef\xbb\xbf)?\s{0,16}%PDF-\d/;
const HEAD_BYTES = 32;
/** Of the streams that hold objects, which is where newer files keep their pages: together. */
const MAX_UNPACKED_BYTES = 32 * 1024 * 1024;
const MAX_STREAMS = 5_000;
/** What deflate makes of a byte, at most. */
const MAX_RATIO = 1_032;
/** Of places that look like a node of the tree of pages, and how far around them the node may reach. */
const MAX_NODES = 1_000;
const REACH_CHARS = 8 * 1024;
const OBJECT_STREAM = "/ObjStm";
const MAX_DICTIONARY_CHARS = 1_024;

export function isPdf(head: Buffer): boolean {
  return HEAD.test(head.subarray(0, HEAD_BYTES).toString("latin1"));
}

export async function pdfFacts(bytes: Buffer): Promise<PdfFacts> {
  const text = bytes.toString("latin1");
  if (!text.includes("startxref")) return { isWhole: false, isEncrypted: false, pages: undefined };
  if (/\/Encrypt\s{0,16}(\d{1,10}\s{1,16}\d{1,5}\s{1,16}R|<<)/.test(text))
    return { isWhole: true, isEncrypted: true, pages: undefined };
  const count = new PageCount();
  count.look(text);
  let left = MAX_UNPACKED_BYTES;
  for (const packed of objectStreams(text, bytes)) {
    const unpacked = await unpackedWithin(packed, left);
    // A stream that does not end within the bound: what it says is not worth more.
    if (unpacked === "too large") break;
    // Nobody says how much came out of a damaged one before it was found out.
    left -= unpacked === "damaged" ? packed.length * MAX_RATIO : unpacked.length;
    if (unpacked !== "damaged") count.look(unpacked.toString("latin1"));
    if (left <= 0) break;
  }
  return { isWhole: true, isEncrypted: false, pages: count.pages };
}

/** The root of the tree of pages counts all of them, so the largest count is the file's. */
class PageCount {
  pages: number | undefined;
  private nodes = 0;

  look(text: string): void {
    for (const { index } of text.matchAll(/\/Type\s{0,16}\/Pages\b/g)) {
      if (this.nodes++ >= MAX_NODES) return;
      const said = /\/Count\s{1,16}(\d{1,7})\b/.exec(dictionaryAround(text, index))?.[1];
      if (said !== undefined) this.pages = Math.max(this.pages ?? 0, Number(said));
    }
  }
}

const OPENING = "<".charCodeAt(0);
const CLOSING = ">".charCodeAt(0);

/** From the `<<` that opens what stands at the index to the `>>` that closes it, within reach. */
function dictionaryAround(text: string, index: number): string {
  const isPair = (at: number, sign: number) =>
    text.charCodeAt(at) === sign && text.charCodeAt(at + 1) === sign;
  let from = index;
  for (let depth = 0; from > Math.max(0, index - REACH_CHARS); from--) {
    if (isPair(from, OPENING) && depth-- === 0) break;
    if (isPair(from, CLOSING)) depth++;
    else if (!isPair(from, OPENING)) continue;
    from--;
  }
  let to = index;
  for (let depth = 0; to < Math.min(text.length, index + REACH_CHARS); to++) {
    if (isPair(to, CLOSING) && depth-- === 0) break;
    if (isPair(to, OPENING)) depth++;
    else if (!isPair(to, CLOSING)) continue;
    to++;
  }
  return text.slice(from, to);
}

/** The packed bytes of each, as far as they are packed in the one way that writers use. */
function* objectStreams(text: string, bytes: Buffer): Generator<Buffer> {
  let at = 0;
  for (let found = 0; found < MAX_STREAMS; found++) {
    at = text.indexOf(OBJECT_STREAM, at);
    if (at < 0) return;
    const begin = text.indexOf("stream", at + OBJECT_STREAM.length);
    const end = begin < 0 ? -1 : text.indexOf("endstream", begin);
    if (end < 0) return;
    // Sought within reach alone: a search back to the beginning for each stream would hold everything else up.
    const before = text.slice(Math.max(0, at - MAX_DICTIONARY_CHARS), at);
    const dictionary = before.slice(before.lastIndexOf(" obj") + 1) + text.slice(at, begin);
    at = end;
    if (!dictionary.includes("/FlateDecode") || dictionary.includes("/DecodeParms")) continue;
    const lineEnd = text.startsWith("\r\n", begin + 6) ? 2 : 1;
    yield bytes.subarray(begin + 6 + lineEnd, end);
  }
}

const inflated = promisify(
  (packed: Buffer, options: object, done: (error: Error | null, result: Buffer) => void) =>
    void inflate(packed, options, done),
);

async function unpackedWithin(packed: Buffer, maxBytes: number): Promise<Buffer | "too large" | "damaged"> {
  try {
    return await inflated(packed, { maxOutputLength: maxBytes, finishFlush: constants.Z_SYNC_FLUSH });
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "ERR_BUFFER_TOO_LARGE" ? "too large" : "damaged";
  }
}
