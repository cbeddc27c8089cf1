/** Sends one answer: whole or streamed, held back where the turn says so, broken off at the byte it names. */
import { once } from "node:events";
import type { ServerResponse } from "node:http";
import {
  type AnswerBlock,
  type AnswerHead,
  blockDeltas,
  blockStart,
  blockStop,
  encodeEvent,
  errorBody,
  messageEnd,
  messageStart,
  piecesOf,
  type StopReason,
  streamedText,
  type WireEvent,
  wholeMessage,
} from "../../harness/demo-model/messages-wire.ts";
import type { Answer, BreakOff, Wait } from "./fake-messages-turn.ts";

const PIECE_CHARS = 16;

export interface PreparedAnswer {
  answer: Answer;
  head: AnswerHead;
  /** The turn's blocks with ids. */
  blocks: readonly AnswerBlock[];
  requestId: string;
}

export interface Sent {
  /** Of the response body. */
  bytes: number;
  /** The answer was broken off as its turn asked, or the client went first. */
  outcome: "answered" | "cut" | "client_closed";
}

/** `gone` aborts when the client has gone or the fake stops; then nothing more is sent. */
export async function sendAnswer(
  response: ServerResponse,
  prepared: PreparedAnswer,
  { stream, gone }: { stream: boolean; gone: AbortSignal },
): Promise<Sent> {
  const body = new CountedBody(response, prepared.answer, gone);
  try {
    await body.hold(prepared.answer.before?.headers);
    await (stream ? sendStream(response, prepared, body) : sendWhole(response, prepared, body));
    return { bytes: body.bytes, outcome: "answered" };
  } catch (error) {
    if (error instanceof BrokenOff) return { bytes: body.bytes, outcome: error.outcome };
    throw error;
  }
}

class BrokenOff extends Error {
  readonly outcome: "cut" | "client_closed";

  constructor(outcome: "cut" | "client_closed") {
    super(outcome);
    this.outcome = outcome;
  }
}

/** The response body, which knows how long it is and where it has to break off. */
class CountedBody {
  bytes = 0;
  private readonly response: ServerResponse;
  private readonly cut: Extract<BreakOff, { atByte: number }> | undefined;
  private readonly gone: AbortSignal;

  constructor(response: ServerResponse, { breakOff }: Answer, gone: AbortSignal) {
    this.response = response;
    this.cut = breakOff && "atByte" in breakOff ? breakOff : undefined;
    this.gone = gone;
  }

  async write(text: string): Promise<void> {
    if (this.gone.aborted) throw new BrokenOff("client_closed");
    const bytes = Buffer.from(text);
    const room = (this.cut?.atByte ?? Number.POSITIVE_INFINITY) - this.bytes;
    const sent = bytes.subarray(0, Math.min(bytes.length, room));
    this.bytes += sent.length;
    if (sent.length > 0 && !this.response.write(sent))
      await Promise.race([once(this.response, "drain"), once(this.response, "close")]);
    if (bytes.length >= room) await this.breakOff();
  }

  async hold(wait: Wait | undefined): Promise<void> {
    if (wait && !this.gone.aborted) {
      const isGone = new AbortController();
      const leave = once(this.gone, "abort", { signal: isGone.signal }).catch(() => {});
      await Promise.race([typeof wait === "function" ? wait() : wait, leave]);
      isGone.abort();
    }
    if (this.gone.aborted) throw new BrokenOff("client_closed");
  }

  private async breakOff(): Promise<never> {
    if (this.cut?.how === "hold") {
      this.cut.held();
      if (!this.gone.aborted) await once(this.gone, "abort");
      throw new BrokenOff("client_closed");
    }
    if (this.cut?.how === "end") this.response.end();
    else {
      // What was written has to leave the process before the socket goes.
      await new Promise<void>((resolve) => {
        this.response.write("", () => resolve());
        this.response.once("close", () => resolve());
      });
      this.response.destroy();
    }
    throw new BrokenOff("cut");
  }
}

async function sendWhole(
  response: ServerResponse,
  prepared: PreparedAnswer,
  body: CountedBody,
): Promise<void> {
  const { answer, head, blocks } = prepared;
  await body.hold(answer.before?.firstDelta);
  const text = JSON.stringify(wholeMessage(head, blocks, stopOf(answer)));
  response.writeHead(200, { "content-type": "application/json", "content-length": Buffer.byteLength(text) });
  response.flushHeaders();
  await body.write(text);
  response.end();
}

async function sendStream(
  response: ServerResponse,
  prepared: PreparedAnswer,
  body: CountedBody,
): Promise<void> {
  const { answer, head, requestId } = prepared;
  const { before, breakOff } = answer;
  response.writeHead(200, {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
  });
  response.flushHeaders();
  const failure = breakOff && "afterDeltas" in breakOff ? breakOff : undefined;
  let deltas = 0;
  await body.write(encodeEvent(messageStart(head)));
  for (const event of contentEvents(prepared)) {
    if (event.type === "content_block_delta") {
      if (deltas === failure?.afterDeltas) break;
      if (deltas === 0) await body.hold(before?.firstDelta);
      const n = deltas++;
      await body.hold(before?.delta && (() => before.delta?.(n)));
    }
    await body.write(encodeEvent(event));
  }
  if (failure) await body.write(encodeEvent(errorBody(failure.errorType, failure.message, requestId)));
  else {
    await body.hold(before?.end);
    for (const event of messageEnd(head.usage, stopOf(answer))) await body.write(encodeEvent(event));
  }
  response.end();
}

function* contentEvents({ answer, blocks }: PreparedAnswer): Generator<WireEvent> {
  for (const [index, block] of blocks.entries()) {
    yield blockStart(index, block);
    if (index === 0) yield { type: "ping" };
    yield* blockDeltas(
      index,
      block,
      answer.blocks[index]?.pieces ?? piecesOf(streamedText(block), PIECE_CHARS),
    );
    yield blockStop(index);
  }
}

export function stopOf(answer: Answer): { reason: StopReason; details?: NonNullable<Answer["stopDetails"]> } {
  const callsTools = answer.blocks.some(({ type }) => type === "tool_use");
  return {
    reason: answer.stopReason ?? (callsTools ? "tool_use" : "end_turn"),
    ...(answer.stopDetails && { details: answer.stopDetails }),
  };
}
