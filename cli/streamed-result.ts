/** What a call's result says beyond the output that was streamed: notes about the hand, and why the call failed. */
import { stripVTControlCharacters } from "node:util";
import { ExecutionOutcome, type ExecutionResult } from "../proto/gen/tendon/v1/hand_pb.js";
import { contentText, resultText } from "./event-payload.ts";

/** Of the end of the output; enough to find it again in the result. */
const KEPT_BYTES = 16 * 1024;
/** Lines of ours after a command's output are a few. */
const MAX_NOTE_LINES = 12;

/** The end of what was streamed, in bounded memory. */
export class StreamedTail {
  private bytes = Buffer.alloc(0);
  written = 0;

  push(chunk: Uint8Array): void {
    this.written += chunk.byteLength;
    this.bytes = Buffer.from(Buffer.concat([this.bytes, chunk]).subarray(-KEPT_BYTES));
  }

  get lastLine(): string {
    const text = stripVTControlCharacters(this.bytes.toString("utf8")).trimEnd();
    return text.slice(text.lastIndexOf("\n") + 1);
  }
}

/** The result's text without the output that was streamed before; empty when that was all. */
export function unstreamedText(content: string, tail: StreamedTail): string {
  if (tail.written === 0) return resultText(content);
  const blocks = blocksOf(content);
  const last = contentText(blocks.slice(-1)).split("\n");
  const before = blocks.slice(0, -1).map((block) => contentText([block]));
  return [...before, ...notesAfter(last, tail.lastLine)].join("\n");
}

function blocksOf(content: string): unknown[] {
  try {
    const blocks: unknown = JSON.parse(content);
    if (Array.isArray(blocks)) return blocks;
  } catch {
    // Text as it is.
  }
  return [{ type: "text", text: content }];
}

/** Notes stand after the output, whose last line is known; where that was cut, by how notes look. */
function notesAfter(lines: readonly string[], lastStreamed: string): readonly string[] {
  const end = lines.findLastIndex((line) => line.trimEnd() === lastStreamed);
  const isEmpty = lastStreamed.trim() === "";
  if (end >= 0 && !isEmpty && lines.length - end - 1 <= MAX_NOTE_LINES) return lines.slice(end + 1);
  const notes: string[] = [];
  for (const line of lines.slice(-MAX_NOTE_LINES).reverse()) {
    if (!/^(\[.*\]|bash: .*|\(no output\))$/.test(line)) break;
    if (line !== "(no output)") notes.unshift(line);
  }
  return notes;
}

/** One line about a call that did not succeed. */
export function failureLine({ outcome, exit, failure }: ExecutionResult): string {
  const ended = exit && (exit.signal === "" ? `exit code ${exit.code}` : exit.signal);
  const origin = failure && `${failure.part} ${failure.reason}`;
  return [whatHappened(outcome, failure?.reason, exit !== undefined), ended, origin]
    .filter(Boolean)
    .join(", ");
}

function whatHappened(outcome: ExecutionOutcome, reason: string | undefined, isCommand: boolean): string {
  switch (outcome) {
    case ExecutionOutcome.COMPLETED:
      return isCommand ? "the command failed" : "the call failed";
    case ExecutionOutcome.TIMED_OUT:
      return reason === "STALLED" ? "the call was ended: it showed no progress" : "the call timed out";
    case ExecutionOutcome.CANCELLED:
      return "the call was cancelled";
    case ExecutionOutcome.NOT_STARTED:
      return "the call was not started";
    default:
      return "the outcome of the call is unknown";
  }
}
