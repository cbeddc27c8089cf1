/** How the journal looks on disk: one line a record, each with a checksum of its own, so that a torn one is known. */
import { createHash } from "node:crypto";

export type JournalRecord =
  /** First line of every journal. */
  | { kind: "journal"; version: 1; id: string }
  /** On disk before anything of the execution starts (X1b). */
  | { kind: "started"; key: string; handId: string; name: string; inputSha256: string; atMs: number }
  /** Must never start (X1c). Its result follows as `finished`. */
  | { kind: "tombstone"; key: string; atMs: number }
  /** `result` is the encoded ExecutionResult in base64. */
  | { kind: "finished"; key: string; result: string }
  /** The server has the result (X1d). */
  | { kind: "forgotten"; key: string };

export interface JournalLine {
  record: JournalRecord;
  /** Where the line stands in the file, its newline included. */
  offset: number;
  length: number;
}

export type JournalContent =
  | { kind: "readable"; id: string; lines: JournalLine[]; goodBytes: number; tornBytes: number }
  | { kind: "corrupt"; atByte: number };

const CHECKSUM_CHARS = 16;

export function encodeRecord(record: JournalRecord): Buffer {
  const json = JSON.stringify(record);
  return Buffer.from(`${checksum(json)} ${json}\n`);
}

/** The record of one line, or undefined when the line is not whole. */
export function decodeRecord(line: Buffer): JournalRecord | undefined {
  const text = line.toString("utf8");
  const json = text.slice(CHECKSUM_CHARS + 1);
  if (text.slice(0, CHECKSUM_CHARS) !== checksum(json)) return undefined;
  return JSON.parse(json) as JournalRecord;
}

/**
 * Reads a whole journal. A crash can leave only its end unreadable, which had not been promised to anyone; something
 * readable after something unreadable means that the file cannot be believed.
 */
export function readJournal(content: Buffer): JournalContent {
  const lines: JournalLine[] = [];
  let bad: number | undefined;
  for (let offset = 0; offset < content.length; ) {
    const newline = content.indexOf(10, offset);
    if (newline === -1) {
      bad ??= offset;
      break;
    }
    const record = decodeRecord(content.subarray(offset, newline));
    if (record === undefined) bad ??= offset;
    else if (bad !== undefined) return { kind: "corrupt", atByte: bad };
    else lines.push({ record, offset, length: newline + 1 - offset });
    offset = newline + 1;
  }
  const first = lines[0]?.record;
  if (first?.kind !== "journal" || first.version !== 1) return { kind: "corrupt", atByte: 0 };
  const goodBytes = bad ?? content.length;
  // Zeros that were written ahead are nothing torn.
  const tornBytes = content.subarray(goodBytes).findLastIndex((byte) => byte !== 0) + 1;
  return { kind: "readable", id: first.id, lines, goodBytes, tornBytes };
}

function checksum(json: string): string {
  return createHash("sha256").update(json).digest("hex").slice(0, CHECKSUM_CHARS);
}
