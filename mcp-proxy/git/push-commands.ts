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
  let seen = Buffer.alloc(0);
  for (;;) {
    const commands = parseCommands(seen);
    if (commands !== undefined) {
      if (seen.length > 0) body.unshift(seen);
      return commands;
    }
    if (seen.length > MOST_BYTES) throw new UnreadablePush("it changes too many refs at once");
    const chunk = await nextChunk(body);
    if (chunk === undefined) throw new UnreadablePush("it ended before it had said what it changes");
    seen = Buffer.concat([seen, chunk]);
  }
}

/** Undefined: more is needed. */
function parseCommands(bytes: Buffer): PushCommands | undefined {
  const refs: string[] = [];
  let capabilities: ReadonlySet<string> | undefined;
  for (let at = 0; at + 4 <= bytes.length; ) {
    const digits = bytes.toString("latin1", at, at + 4);
    if (!/^[0-9a-fA-F]{4}$/.test(digits)) throw new UnreadablePush("it is not what git sends");
    const length = Number.parseInt(digits, 16);
    if (length === 0) return { refs, capabilities: capabilities ?? new Set() };
    if (length <= 4 || length > LONGEST_LINE) throw new UnreadablePush("it is not what git sends");
    if (at + length > bytes.length) return undefined;
    const line = bytes.toString("utf8", at + 4, at + length);
    at += length;
    const [command = "", words] = splitOnce(line.replace(/\n$/, ""));
    if (words !== undefined) capabilities ??= new Set(words.trim().split(" "));
    if (command === "push-cert")
      throw new UnreadablePush("it is signed, and signed pushes cannot be checked");
    if (SHALLOW.test(command)) continue;
    const ref = COMMAND.exec(command)?.[1];
    if (ref === undefined) throw new UnreadablePush("it is not what git sends");
    refs.push(ref);
  }
  return undefined;
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
