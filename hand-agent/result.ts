/**
 * What a call ends in, and how much of its output it may hold.
 *
 * Text is at most 100,000 characters: the first 20,000 and the last 80,000, with one line between that names how many
 * bytes were dropped and the file in the hand that holds everything. Memory stays bounded however much flows.
 */
import { createHash } from "node:crypto";
import { join } from "node:path";
import type { Hand, ProcessInfo } from "./drivers/driver.ts";
import { TextTail } from "./text-tail.ts";

export const MAX_TEXT_CHARS = 100_000;
export const HEAD_CHARS = 20_000;
export const TAIL_CHARS = MAX_TEXT_CHARS - HEAD_CHARS;
/** What an artefact may grow to; the rest is counted, not kept. */
export const MAX_ARTEFACT_BYTES = 1024 ** 3;
/** Raw bytes kept in memory before they go to a file. Text of the greatest allowed length fits in. */
const SPOOL_AFTER_BYTES = 512 * 1024;
/** Bytes that may wait for the disk. */
const SPOOL_QUEUE_BYTES = 1024 * 1024;

export type ToolOutcome =
  /** The tool ran to its end, whatever it found; a command that exits with 1 has completed. */
  | "completed"
  /** The tool could not run: bad input, or the hand failed. */
  | "failed"
  | "timed_out"
  /** It was ended because it showed no progress, before its time limit. */
  | "stalled"
  | "cancelled"
  /** Nobody can know what was done. */
  | "unknown";

export interface TextBlock {
  readonly type: "text";
  readonly text: string;
}

export interface ImageBlock {
  readonly type: "image";
  readonly source: { readonly type: "base64"; readonly media_type: string; readonly data: string };
}

export interface Artefact {
  /** In the hand. */
  readonly path: string;
  readonly bytes: number;
  /** Lower-case hex. */
  readonly sha256: string;
}

export interface ToolResult {
  readonly isError: boolean;
  readonly outcome: ToolOutcome;
  readonly content: readonly (TextBlock | ImageBlock)[];
  readonly artefacts: readonly Artefact[];
  /** Of a command; `code` is undefined when a signal of ours ended it. */
  readonly exit?: { readonly code?: number; readonly signal?: string };
  /** Processes of this call that live on after its end. */
  readonly leftProcesses?: readonly ProcessInfo[];
}

const EMPTY_TEXT = "(no output)";

/** A plain result. Longer text than allowed is cut; `source` names where the whole can be read. */
export function textResult(
  text: string,
  options: { source?: string; artefacts?: readonly Artefact[] } = {},
): ToolResult {
  const capped = capText(text, options.source);
  return {
    isError: false,
    outcome: "completed",
    content: [{ type: "text", text: capped === "" ? EMPTY_TEXT : capped }],
    artefacts: options.artefacts ?? [],
  };
}

export function errorResult(text: string, outcome: ToolOutcome = "completed"): ToolResult {
  return { ...textResult(text), isError: true, outcome };
}

/** Applies the bound to a text that is held whole. */
export function capText(text: string, source?: string): string {
  if (text.length <= MAX_TEXT_CHARS) return text;
  const head = text.slice(0, splitBefore(text, HEAD_CHARS));
  const tail = text.slice(splitAfter(text, text.length - TAIL_CHARS));
  const dropped = Buffer.byteLength(text) - Buffer.byteLength(head) - Buffer.byteLength(tail);
  return joinCut(head, tail, dropped, source === undefined ? "" : `; all of it is in ${source}`);
}

function joinCut(head: string, tail: string, droppedBytes: number, where: string): string {
  const line = `[${droppedBytes} bytes dropped${where}]`;
  return `${head}${head.endsWith("\n") ? "" : "\n"}${line}\n${tail}`;
}

/** The nearest place at or before `index` that does not part a surrogate pair. */
function splitBefore(text: string, index: number): number {
  return isHighSurrogate(text.charCodeAt(index - 1)) ? index - 1 : index;
}

function splitAfter(text: string, index: number): number {
  return isHighSurrogate(text.charCodeAt(index - 1)) ? index + 1 : index;
}

function isHighSurrogate(code: number): boolean {
  return code >= 0xd800 && code <= 0xdbff;
}

/** Takes terminal control sequences out of text that comes in pieces. */
export class AnsiStripper {
  private pending = "";

  /** What of the text so far is final. A sequence that is cut waits for its rest, at most 4,096 characters. */
  push(text: string): string {
    const all = this.pending + text;
    this.pending = "";
    if (!all.includes("\x1b")) return all;
    const open = OPEN_SEQUENCE.exec(all.slice(-MAX_SEQUENCE_CHARS));
    const end = open ? all.length - open[0].length : all.length;
    this.pending = all.slice(end);
    return all.slice(0, end).replace(SEQUENCES, "");
  }

  end(): string {
    const rest = this.pending.replace(SEQUENCES, "");
    this.pending = "";
    return rest;
  }
}

const MAX_SEQUENCE_CHARS = 4_096;
// CSI; OSC, DCS, SOS, PM and APC up to BEL or ST; charset choices; single-character escapes.
const SEQUENCES =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what this is about
  /\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[0-Z\\^-~])/g;
const OPEN_SEQUENCE =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what this is about
  /\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)$/;

/** Turns a stream of output into bounded text and, where that is cut, an artefact that holds all bytes. */
export class OutputCollector {
  private readonly hand: Hand;
  private readonly path: string;
  private readonly maxArtefactBytes: number;
  private readonly decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  private readonly stripper = new AnsiStripper();
  private readonly text = new HeadAndTail();
  private early: Uint8Array[] = [];
  private earlyBytes = 0;
  private spool: Spool | undefined;

  constructor(hand: Hand, callId: string, options: { maxArtefactBytes?: number } = {}) {
    this.hand = hand;
    this.path = outputPath(hand, callId);
    this.maxArtefactBytes = options.maxArtefactBytes ?? MAX_ARTEFACT_BYTES;
  }

  /** Resolves when more may come. */
  async push(chunk: Uint8Array): Promise<void> {
    this.text.push(this.stripper.push(this.decoder.decode(chunk, { stream: true })));
    if (this.spool) return this.spool.push(chunk);
    this.early.push(chunk);
    this.earlyBytes += chunk.byteLength;
    if (this.earlyBytes > SPOOL_AFTER_BYTES || this.text.isCut) await this.startSpool();
  }

  /** The text without trailing newlines, and the artefact if the text does not hold everything. Never rejects. */
  async end(): Promise<{ text: string; artefacts: Artefact[] }> {
    this.text.push(this.stripper.push(this.decoder.decode()) + this.stripper.end());
    const artefact = await this.spool?.end();
    if (!this.text.isCut) {
      if (artefact) await this.hand.remove(this.path).catch(() => {});
      return { text: this.text.end(""), artefacts: [] };
    }
    if (!artefact) return { text: this.text.end("; the whole could not be kept"), artefacts: [] };
    const cut = this.spool?.isCut ? `the first ${artefact.bytes} bytes are` : "all of it is";
    return { text: this.text.end(`; ${cut} in ${this.path}`), artefacts: [artefact] };
  }

  private async startSpool(): Promise<void> {
    this.spool = new Spool(this.hand, this.path, this.maxArtefactBytes);
    const early = this.early;
    this.early = [];
    for (const chunk of early) await this.spool.push(chunk);
  }
}

/** Where the whole output of a call is kept. */
export function outputPath(hand: Pick<Hand, "outputsDir">, callId: string): string {
  return join(hand.outputsDir, `${callId.replaceAll(/[^A-Za-z0-9_-]/g, "_").slice(0, 120)}.txt`);
}

/** Keeps the beginning and the end of a text; newlines at the very end are not part of it. */
class HeadAndTail {
  private head = "";
  private headIsFull = false;
  private readonly tail = new TextTail(TAIL_CHARS);
  private totalBytes = 0;
  private newlines = 0;

  get isCut(): boolean {
    return this.tail.isCut;
  }

  push(text: string): void {
    const length = trimmedLength(text);
    if (length > 0) {
      // Newlines that stood at the end so far turn out to be inside.
      for (; this.newlines > 0; this.newlines -= Math.min(this.newlines, TAIL_CHARS)) {
        this.add("\n".repeat(Math.min(this.newlines, TAIL_CHARS)));
      }
      this.add(text.slice(0, length));
    }
    this.newlines += text.length - length;
  }

  end(where: string): string {
    const tail = this.tail.end();
    if (!this.isCut) return this.head + tail;
    const dropped = this.totalBytes - Buffer.byteLength(this.head) - Buffer.byteLength(tail);
    return joinCut(this.head, tail, dropped, where);
  }

  private add(text: string): void {
    this.totalBytes += Buffer.byteLength(text);
    let rest = text;
    if (!this.headIsFull) {
      const room = HEAD_CHARS - this.head.length;
      const end = rest.length <= room ? rest.length : splitBefore(rest, room);
      this.head += rest.slice(0, end);
      rest = rest.slice(end);
      this.headIsFull = rest.length > 0 || this.head.length >= HEAD_CHARS;
    }
    this.tail.push(rest);
  }
}

function trimmedLength(text: string): number {
  let length = text.length;
  while (length > 0 && text.charCodeAt(length - 1) === 10) length -= 1;
  return length;
}

/** Writes a stream into a file of the hand, with a digest, up to a bound. A failing disk loses the file, not the call. */
class Spool {
  isCut = false;
  private readonly path: string;
  private readonly maxBytes: number;
  private readonly hash = createHash("sha256");
  private readonly written: Promise<boolean>;
  private queue: Uint8Array[] = [];
  private queuedBytes = 0;
  private bytes = 0;
  private ended = false;
  private failed = false;
  private wakeWriter = () => {};
  private wakePusher = () => {};

  constructor(hand: Hand, path: string, maxBytes: number) {
    this.path = path;
    this.maxBytes = maxBytes;
    this.written = hand.writeFile(path, this.chunks()).then(
      () => true,
      () => {
        this.failed = true;
        this.wakePusher();
        return false;
      },
    );
  }

  async push(chunk: Uint8Array): Promise<void> {
    const room = this.maxBytes - this.bytes;
    if (chunk.byteLength > room) this.isCut = true;
    if (this.failed || room <= 0) return;
    const kept = chunk.subarray(0, room);
    this.hash.update(kept);
    this.bytes += kept.byteLength;
    this.queue.push(kept);
    this.queuedBytes += kept.byteLength;
    this.wakeWriter();
    while (this.queuedBytes > SPOOL_QUEUE_BYTES && !this.failed) {
      await new Promise<void>((resolve) => {
        this.wakePusher = resolve;
      });
    }
  }

  async end(): Promise<Artefact | undefined> {
    this.ended = true;
    this.wakeWriter();
    if (!(await this.written)) return undefined;
    return { path: this.path, bytes: this.bytes, sha256: this.hash.digest("hex") };
  }

  private async *chunks(): AsyncGenerator<Uint8Array> {
    for (;;) {
      const chunk = this.queue.shift();
      if (chunk) {
        yield chunk;
        this.queuedBytes -= chunk.byteLength;
        this.wakePusher();
      } else if (this.ended) return;
      else {
        await new Promise<void>((resolve) => {
          this.wakeWriter = resolve;
        });
      }
    }
  }
}
