/** Cuts a stream of server-sent events into its events, whole and as they stand. */

const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;

export class EventStreamTooLarge extends Error {
  override readonly name = "EventStreamTooLarge";
}

export class EventStream {
  private readonly maxEventBytes: number;
  private parts: Buffer[] = [];
  private size = 0;
  private lineIsEmpty = true;
  private lastWasReturn = false;

  constructor(maxEventBytes: number) {
    this.maxEventBytes = maxEventBytes;
  }

  /** The events that end in this chunk. Throws an EventStreamTooLarge. */
  push(chunk: Buffer): Buffer[] {
    const events: Buffer[] = [];
    let from = 0;
    for (let at = 0; at < chunk.length; at++) {
      const byte = chunk[at]!;
      const endsLine = byte === CARRIAGE_RETURN || (byte === LINE_FEED && !this.lastWasReturn);
      const isSecondHalf = byte === LINE_FEED && this.lastWasReturn;
      this.lastWasReturn = byte === CARRIAGE_RETURN;
      if (isSecondHalf) continue;
      if (!endsLine) {
        this.lineIsEmpty = false;
        continue;
      }
      if (!this.lineIsEmpty) {
        this.lineIsEmpty = true;
        continue;
      }
      const isPair = byte === CARRIAGE_RETURN && chunk[at + 1] === LINE_FEED;
      const to = at + (isPair ? 2 : 1);
      events.push(Buffer.concat([...this.parts, chunk.subarray(from, to)]));
      this.parts = [];
      this.size = 0;
      from = to;
    }
    if (from < chunk.length) {
      this.parts.push(chunk.subarray(from));
      this.size += chunk.length - from;
    }
    if (this.size > this.maxEventBytes) throw new EventStreamTooLarge();
    return events;
  }
}

/** Text of an event's data; empty for one that has none. */
export function dataOf(event: Buffer): string {
  return event
    .toString("utf8")
    .split(/\r\n|\n|\r/)
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(line[5] === " " ? 6 : 5))
    .join("\n");
}
