/** Reads an exported log, from a file or a server, event by event. */
import { isTendonError } from "../../kit/errors.ts";
import { LineReader } from "../../kit/log-file/line-reader.ts";
import {
  type LogEvent,
  type LogHeader,
  MAX_LINE_BYTES,
  parseHeader,
  parseLogLine,
} from "../../kit/log-file/log-lines.ts";

export interface OpenLog {
  readonly header: LogHeader;
  /** In the order of the lines. Throws `BrokenLog` where it cannot be read on. */
  readonly events: AsyncGenerator<LogEvent, void>;
}

/** The lines are none of a log, or not all of it; the message says where. */
export class BrokenLog extends Error {
  override readonly name = "BrokenLog";
}

/** Throws `BrokenLog`, and what `chunks` throws. */
export async function openLog(chunks: AsyncIterable<Uint8Array>): Promise<OpenLog> {
  // One line is held at a time, and that is bounded.
  const budget = { take() {}, giveBack() {} };
  const lines = new LineReader(budget, MAX_LINE_BYTES).read(chunks);
  const first = await broken(() => lines.next());
  if (first.done) throw new BrokenLog("there is nothing in it");
  const header = await broken(() => parseHeader(first.value.text, "line 1"));
  return { header, events: readEvents(lines) };
}

async function* readEvents(lines: ReturnType<LineReader["read"]>): AsyncGenerator<LogEvent, void> {
  let events = 0;
  for (;;) {
    const next = await broken(() => lines.next());
    if (next.done) throw new BrokenLog("it is cut off: its last line is missing");
    const line = next.value;
    const parsed = await broken(() => parseLogLine(line.text, `line ${line.number}`));
    if (parsed.kind === "event") {
      events += 1;
      yield parsed.event;
      continue;
    }
    if (parsed.events !== events)
      throw new BrokenLog(`its last line says ${parsed.events} events, there are ${events}`);
    if (parsed.sha256 !== line.sha256Before())
      throw new BrokenLog("its last line has not the digest of the lines before");
    if (!(await broken(() => lines.next())).done) throw new BrokenLog("something follows its last line");
    return;
  }
}

/** What is wrong with a line is told apart from what is wrong with a call. */
async function broken<T>(read: () => T | Promise<T>): Promise<T> {
  try {
    return await read();
  } catch (error) {
    if (isTendonError(error, "INVALID_FIELD") || isTendonError(error, "MESSAGE_TOO_LARGE")) {
      throw new BrokenLog(error.message, { cause: error });
    }
    throw error;
  }
}
