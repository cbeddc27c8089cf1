/** Text within a bound: what is in the middle gives way, and it is said how much that was. Pure. */

/** Of the bound, for the beginning; the rest is for the newest part. */
const HEAD_SHARE = 0.2;
/** No part takes more than this share of the bound. */
const PART_SHARE = 0.05;
const MIN_PART_BYTES = 200;

export interface TextPart {
  /** Never shortened. */
  readonly head: string;
  readonly text: string;
}

/** At most about `maxBytes` of UTF-8: the first parts and the newest ones, long ones by their beginning and end. */
export function partsWithin(parts: readonly TextPart[], maxBytes: number): string {
  const partBytes = Math.max(MIN_PART_BYTES, Math.floor(maxBytes * PART_SHARE));
  const texts = parts.map(({ head, text }) => `${head}${shortened(text, partBytes)}`);
  const sizes = texts.map((text) => Buffer.byteLength(text) + 2);
  let from = texts.length;
  for (let left = maxBytes * (1 - HEAD_SHARE); from > 0 && left >= sizes[from - 1]!; from--)
    left -= sizes[from - 1]!;
  let headEnd = 0;
  for (let left = maxBytes * HEAD_SHARE; headEnd < from && left >= sizes[headEnd]!; headEnd++)
    left -= sizes[headEnd]!;
  if (headEnd >= from) return texts.join("\n\n");
  const gap = `[${from - headEnd} parts left out]`;
  return [...texts.slice(0, headEnd), gap, ...texts.slice(from)].join("\n\n");
}

/** Beginning and end, and how much is missing between them. */
export function shortened(text: string, maxBytes: number): string {
  const bytes = Buffer.byteLength(text);
  if (bytes <= maxBytes) return text;
  const chars = Math.floor((maxBytes * text.length) / bytes / 2);
  return `${text.slice(0, chars)} [… ${text.length - 2 * chars} characters left out …] ${text.slice(text.length - chars)}`;
}
