/** The beginning of a push: what it would change, before any of it is sent on. Stricter than git servers, never laxer. */
import type { Readable } from "node:stream";

export interface PushCommands {
  readonly refs: readonly string[];
  readonly capabilities: ReadonlySet<string>;
}

/** A push that cannot be judged; the message is for the person who pushes. */
export class UnreadablePush extends Error {
  override readonly name = "UnreadablePush";
}

const MOST_BYTES = 1024 * 1024;
const LONGEST_LINE = 65_520;
const COMMAND = /^[0-9a-f]{40}(?:[0-9a-f]{24})? [0-9a-f]{40}(?:[0-9a-f]{24})? (refs\/[^\0\n]+)$/;
const SHALLOW = /^shallow [0-9a-f]{40}(?:[0-9a-f]{24})?$/;

/** Reads up to the end of the commands, and leaves all of it to be read again. Rejects with an UnreadablePush. */
export async function readPushCommands(body: Readable): Promise<PushCommands> {
  const seen: Buffer[] = [];
  let bytes = 0;
  let unparsed: Buffer = Buffer.alloc(0);
  const refs: string[] = [];
  const capabilities = new Set<string>();
  for (;;) {
    const { isEnd, rest } = parseLines(unparsed, refs, capabilities);
    unparsed = rest;
    if (isEnd) break;
    if (bytes > MOST_BYTES) throw new UnreadablePush("it changes too many refs at once");
    const chunk = await nextChunk(body);
    if (chunk === undefined) throw new UnreadablePush("it ended before it had said what it changes");
    bytes += chunk.length;
    seen.push(chunk);
    unparsed = Buffer.concat([unparsed, chunk]);
  }
  if (bytes > 0) body.unshift(Buffer.concat(seen));
  return { refs, capabilities };
}

/** Whole lines, each once: how they come in pieces does not make it slow. Gives what is no whole line yet. */
function parseLines(bytes: Buffer, refs: string[], capabilities: Set<string>) {
  let at = 0;
  while (at + 4 <= bytes.length) {
    const digits = bytes.toString("latin1", at, at + 4);
    if (!/^[0-9a-fA-F]{4}$/.test(digits)) throw new UnreadablePush("it is not what git sends");
    const length = Number.parseInt(digits, 16);
    if (length === 0) return { isEnd: true, rest: bytes.subarray(at) };
    if (length <= 4 || length > LONGEST_LINE) throw new UnreadablePush("it is not what git sends");
    if (at + length > bytes.length) break;
    const line = bytes.toString("utf8", at + 4, at + length);
    at += length;
    const [command = "", words = ""] = splitOnce(line.replace(/\n$/, ""));
    // Git servers take them from any line.
    for (const word of words.split(/\s+/)) if (word !== "") capabilities.add(word);
    if (command === "push-cert")
      throw new UnreadablePush("it is signed, and signed pushes cannot be checked");
    if (SHALLOW.test(command)) continue;
    const ref = COMMAND.exec(command)?.[1];
    if (ref === undefined) throw new UnreadablePush("it is not what git sends");
    refs.push(ref);
  }
  return { isEnd: false, rest: bytes.subarray(at) };
}

function splitOnce(line: string): [string, string?] {
  const nul = line.indexOf("\0");
  return nul < 0 ? [line] : [line.slice(0, nul), line.slice(nul + 1)];
}

function nextChunk(body: Readable): Promise<Buffer | undefined> {
  const ready = body.read() as Buffer | null;
  if (ready !== null) return Promise.resolve(ready);
  if (body.readableEnded || body.destroyed) return Promise.resolve(undefined);
  return new Promise((resolve) => {
    const settle = () => {
      body.off("readable", settle).off("end", settle).off("close", settle);
      resolve((body.read() as Buffer | null) ?? undefined);
    };
    body.on("readable", settle).on("end", settle).on("close", settle);
  });
}

/** What a git server would say if it refused all of it; undefined where the client takes no such report. */
export function refusedPush(
  { refs, capabilities }: PushCommands,
  reasonOf: (ref: string) => string,
): Buffer | undefined {
  if (!capabilities.has("report-status") && !capabilities.has("report-status-v2")) return undefined;
  const lines = ["unpack ok\n", ...refs.map((ref) => `ng ${ref} ${reasonOf(ref)}\n`)];
  const report = Buffer.concat([...lines.map((line) => packet(Buffer.from(line))), FLUSH]);
  if (!capabilities.has("side-band-64k")) return report;
  const parts: Buffer[] = [];
  for (let at = 0; at < report.length; at += BAND_BYTES) {
    parts.push(packet(Buffer.concat([Buffer.of(1), report.subarray(at, at + BAND_BYTES)])));
  }
  return Buffer.concat([...parts, FLUSH]);
}

const FLUSH = Buffer.from("0000");
const BAND_BYTES = 65_000;

function packet(bytes: Buffer): Buffer {
  return Buffer.concat([Buffer.from((bytes.length + 4).toString(16).padStart(4, "0")), bytes]);
}
