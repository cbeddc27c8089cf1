/**
 * Takes known secret values out of what an MCP server sends, as it streams by: also where chunks meet inside of one, and where
 * it is written with escapes of JSON (also of JSON inside JSON) or of URLs. Bytes are held back only while they may be the
 * beginning of a value. Whoever wants to smuggle a value past it can; it is for servers that repeat what they were sent.
 */

export const REDACTED = Buffer.from("[redacted]");

const BACKSLASH = 0x5c;
const PERCENT = 0x25;
const LETTER_U = 0x75;

/** One way of reading the bytes; each decoded byte has the place of its first raw one, and the one after its last. */
type Emit = (byte: number, rawStart: number, rawEnd: number) => void;

interface View {
  take(byte: number, at: number, emit: Emit): void;
  /** Where a sequence began that is not decoded yet. */
  readonly pendingFrom: number | undefined;
}

class Plain implements View {
  readonly pendingFrom = undefined;
  take(byte: number, at: number, emit: Emit): void {
    emit(byte, at, at + 1);
  }
}

/** Backslashes, any number of them, before a character or before `u` and four digits. */
class Unescaped implements View {
  pendingFrom: number | undefined;
  private digits = "";
  private inUnicode = false;

  take(byte: number, at: number, emit: Emit): void {
    if (this.inUnicode) {
      this.digits += String.fromCharCode(byte);
      if (this.digits.length < 4) return;
      const from = this.end(at);
      for (const decoded of Buffer.from(String.fromCharCode(Number.parseInt(this.digits, 16) || 0))) {
        emit(decoded, from, at + 1);
      }
      this.digits = "";
      return;
    }
    if (byte === BACKSLASH) {
      this.pendingFrom ??= at;
      return;
    }
    if (this.pendingFrom === undefined) {
      emit(byte, at, at + 1);
      return;
    }
    if (byte === LETTER_U) {
      this.inUnicode = true;
      return;
    }
    emit(byte, this.end(at), at + 1);
  }

  private end(at: number): number {
    const from = this.pendingFrom ?? at;
    this.pendingFrom = undefined;
    this.inUnicode = false;
    return from;
  }
}

class PercentDecoded implements View {
  pendingFrom: number | undefined;
  private digits = "";

  take(byte: number, at: number, emit: Emit): void {
    if (byte === PERCENT) {
      this.pendingFrom = at;
      this.digits = "";
      return;
    }
    if (this.pendingFrom === undefined) {
      emit(byte, at, at + 1);
      return;
    }
    this.digits += String.fromCharCode(byte);
    if (this.digits.length < 2) return;
    const from = this.pendingFrom;
    this.pendingFrom = undefined;
    if (/^[0-9a-f]{2}$/i.test(this.digits)) {
      emit(Number.parseInt(this.digits, 16), from, at + 1);
      return;
    }
    emit(PERCENT, from, from + 1);
    for (const [index, plain] of [...Buffer.from(this.digits, "latin1")].entries())
      emit(plain, from + 1 + index, from + 2 + index);
  }
}

/** One value in one view: how much of it the newest bytes are (Knuth, Morris, Pratt), and where each of these began. */
class Matcher {
  private readonly pattern: Buffer;
  private readonly fallback: Uint16Array;
  private readonly starts: Float64Array;
  private matched = 0;
  private seen = 0;

  constructor(pattern: Buffer) {
    this.pattern = pattern;
    this.starts = new Float64Array(pattern.length);
    this.fallback = new Uint16Array(pattern.length);
    for (let at = 1, length = 0; at < pattern.length; ) {
      if (pattern[at] === pattern[length]) this.fallback[at++] = ++length;
      else if (length > 0) length = this.fallback[length - 1]!;
      else at += 1;
    }
  }

  /** Where the value began, when this byte is its last. */
  take(byte: number, rawStart: number): number | undefined {
    const { pattern, fallback, starts } = this;
    starts[this.seen % pattern.length] = rawStart;
    this.seen += 1;
    while (this.matched > 0 && pattern[this.matched] !== byte) this.matched = fallback[this.matched - 1]!;
    if (pattern[this.matched] === byte) this.matched += 1;
    if (this.matched < pattern.length) return undefined;
    this.matched = 0;
    return starts[this.seen % pattern.length];
  }

  get heldFrom(): number | undefined {
    if (this.matched === 0) return undefined;
    return this.starts[(this.seen - this.matched) % this.pattern.length];
  }
}

function matchersOf(secrets: readonly string[], view: View): Matcher[] {
  // That view has no backslashes, so neither have the values that it looks for.
  const seen = view instanceof Unescaped ? secrets.map((secret) => secret.replaceAll("\\", "")) : secrets;
  return seen.filter((secret) => secret !== "").map((secret) => new Matcher(Buffer.from(secret)));
}

export class Redactor {
  private readonly views: { view: View; matchers: Matcher[] }[];
  /** Raw bytes that were not let through, and their place in the stream. */
  private held: Buffer = Buffer.alloc(0);
  private heldAt = 0;
  private readonly found: { from: number; to: number }[] = [];

  constructor(secrets: readonly string[]) {
    const views = secrets.length === 0 ? [] : [new Plain(), new Unescaped(), new PercentDecoded()];
    this.views = views.map((view) => ({ view, matchers: matchersOf(secrets, view) }));
  }

  /** What may go on by now. */
  push(chunk: Buffer): Buffer {
    if (this.views.length === 0) return chunk;
    const start = this.heldAt + this.held.length;
    for (let index = 0; index < chunk.length; index++) this.take(chunk[index]!, start + index);
    this.held = this.held.length === 0 ? chunk : Buffer.concat([this.held, chunk]);
    return this.release(this.safeUpTo());
  }

  /** The rest, at the end. */
  end(): Buffer {
    return this.release(this.heldAt + this.held.length);
  }

  private take(byte: number, at: number): void {
    for (const { view, matchers } of this.views) {
      view.take(byte, at, (decoded, rawStart, rawEnd) => {
        for (const matcher of matchers) {
          const from = matcher.take(decoded, rawStart);
          if (from !== undefined) this.found.push({ from, to: rawEnd });
        }
      });
    }
  }

  private safeUpTo(): number {
    let safe = this.heldAt + this.held.length;
    for (const { view, matchers } of this.views) {
      if (view.pendingFrom !== undefined) safe = Math.min(safe, view.pendingFrom);
      for (const { heldFrom } of matchers) if (heldFrom !== undefined) safe = Math.min(safe, heldFrom);
    }
    // A sequence of backslashes without end is no value.
    return Math.max(safe, this.heldAt + this.held.length - MAX_HELD);
  }

  private release(upTo: number): Buffer {
    this.found.sort((one, other) => one.from - other.from);
    const parts: Buffer[] = [];
    let at = this.heldAt;
    let end = upTo;
    const due = this.found.findIndex(({ from }) => from >= upTo);
    // One that lies in what is held may turn out to be part of a longer one.
    for (const { from, to } of this.found.splice(0, due < 0 ? this.found.length : due)) {
      if (to <= at) continue;
      if (from >= at)
        parts.push(this.held.subarray(at - this.heldAt, Math.max(from, at) - this.heldAt), REDACTED);
      at = to;
      end = Math.max(end, to);
    }
    if (end > at) parts.push(this.held.subarray(at - this.heldAt, end - this.heldAt));
    this.held = this.held.subarray(Math.max(end, at) - this.heldAt);
    this.heldAt = Math.max(end, at);
    return parts.length === 1 ? parts[0]! : Buffer.concat(parts);
  }
}

/** More than any value takes in its longest spelling. */
const MAX_HELD = 1024 * 1024;
