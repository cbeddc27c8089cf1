/**
 * The endpoint that stands in when no model key is set: it speaks the Messages API on a loopback port and answers by
 * script. The loop that talks to it is the same as for a real model, and cannot tell the difference on the wire.
 */
import { createHash, randomBytes, timingSafeEqual } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { type Clock, systemClock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import { type DemoRequest, parseDemoRequest, RequestRefused } from "./demo-request.ts";
import { asksForVerdict, demoVerdict } from "./grader.ts";
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
  roughTokens,
  type StopReason,
  streamedText,
  type WireEvent,
  wholeMessage,
} from "./messages-wire.ts";
import { type PlannedBlock, plan, wordsOf } from "./plan.ts";

export const DEMO_MODEL_NAME = "tendon-demo";

/** As large as the API itself takes. */
const MAX_BODY_BYTES = 32 * 1024 * 1024;
const PIECE_CHARS = 12;
const PIECE_PAUSE_MS = 3;
/** Only the first pieces are held apart, so that a long answer takes no longer than 0.3 s. */
const MAX_PAUSES = 100;

export interface DemoModelOptions {
  log: Logger;
  clock?: Clock;
}

export interface DemoModel {
  /** Where the API's paths begin, for `baseURL`. */
  readonly baseUrl: string;
  /** The bearer token that every request must carry; nobody else on this machine knows it. */
  readonly authToken: string;
  /** Ends open answers and closes the port. May be called twice. */
  stop(): Promise<void>;
}

/** Listens on 127.0.0.1 at a free port. Rejects when no port can be had. */
export async function startDemoModel({ log, clock = systemClock }: DemoModelOptions): Promise<DemoModel> {
  const authToken = randomBytes(32).toString("base64url");
  const stopping = new AbortController();
  const server = createServer((request, response) => {
    serve(request, response, { authToken, clock, stopping: stopping.signal }).catch((error) => {
      if (!response.destroyed) {
        log.error({ problem: messageOf(error) }, "the demo model failed to answer");
        response.destroy();
      }
    });
  });
  await listen(server);
  const { port } = server.address() as AddressInfo;
  return {
    baseUrl: `http://127.0.0.1:${port}`,
    authToken,
    stop: () => {
      stopping.abort();
      return close(server);
    },
  };
}

function listen(server: Server): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      server.off("error", reject);
      resolve();
    });
  });
}

function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve());
    server.closeAllConnections();
  });
}

interface Context {
  authToken: string;
  clock: Clock;
  stopping: AbortSignal;
}

async function serve(request: IncomingMessage, response: ServerResponse, context: Context): Promise<void> {
  const requestId = `req_${randomBytes(12).toString("hex")}`;
  response.setHeader("request-id", requestId);
  try {
    if (!isAuthorized(request, context.authToken))
      throw new RequestRefused(401, "authentication_error", "the bearer token is not the demo's");
    const path = new URL(request.url ?? "/", "http://demo").pathname;
    const route = `${request.method} ${path}`;
    if (route === "POST /v1/messages") {
      const body = await readBody(request);
      await answer(parseDemoRequest(body), body.length, response, context);
    } else if (route === "GET /v1/models") sendJson(response, 200, MODEL_PAGE);
    else if (route === `GET /v1/models/${DEMO_MODEL_NAME}`) sendJson(response, 200, MODEL_INFO);
    else throw new RequestRefused(404, "not_found_error", `the demo has no ${route}`);
  } catch (error) {
    if (!(error instanceof RequestRefused)) throw error;
    // What is left of a refused body is not read; the connection ends with the answer.
    response.setHeader("connection", "close");
    sendJson(response, error.status, errorBody(error.type, error.message, requestId));
  }
}

function isAuthorized(request: IncomingMessage, authToken: string): boolean {
  const digest = (value: string) => createHash("sha256").update(value).digest();
  return timingSafeEqual(digest(request.headers.authorization ?? ""), digest(`Bearer ${authToken}`));
}

async function readBody(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > MAX_BODY_BYTES)
      throw new RequestRefused(413, "request_too_large", `a request is at most ${MAX_BODY_BYTES} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

async function answer(
  request: DemoRequest,
  inputBytes: number,
  response: ServerResponse,
  context: Context,
): Promise<void> {
  const blocks = planned(request).map(withId);
  const reason: StopReason = blocks.some((block) => block.type === "tool_use") ? "tool_use" : "end_turn";
  const head: AnswerHead = {
    id: `msg_${randomBytes(12).toString("hex")}`,
    model: DEMO_MODEL_NAME,
    usage: {
      inputTokens: Math.ceil(inputBytes / 4),
      cacheReadTokens: 0,
      cacheCreation5mTokens: 0,
      cacheCreation1hTokens: 0,
      outputTokens: blocks.reduce((sum, block) => sum + roughTokens(streamedText(block)), 1),
    },
  };
  if (!request.stream) return sendJson(response, 200, wholeMessage(head, blocks, { reason }));
  response.writeHead(200, {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
  });
  let pauses = 0;
  for (const event of answerEvents(head, blocks, reason)) {
    if (response.destroyed || context.stopping.aborted) return;
    response.write(encodeEvent(event));
    if (event.type === "content_block_delta" && pauses++ < MAX_PAUSES)
      await context.clock.sleep(PIECE_PAUSE_MS);
  }
  response.end();
}

function planned({ system, messages, toolNames }: DemoRequest): PlannedBlock[] {
  if (!asksForVerdict(system)) return plan(messages, toolNames);
  return [{ type: "text", text: demoVerdict(wordsOf(messages)) }];
}

function withId(block: PlannedBlock): AnswerBlock {
  if (block.type === "text") return block;
  return {
    type: "tool_use",
    id: `toolu_${randomBytes(12).toString("hex")}`,
    name: block.name,
    inputJson: JSON.stringify(block.input),
  };
}

function* answerEvents(
  head: AnswerHead,
  blocks: readonly AnswerBlock[],
  reason: StopReason,
): Generator<WireEvent> {
  yield messageStart(head);
  yield { type: "ping" };
  for (const [index, block] of blocks.entries()) {
    yield blockStart(index, block);
    yield* blockDeltas(index, block, piecesOf(streamedText(block), PIECE_CHARS));
    yield blockStop(index);
  }
  yield* messageEnd(head.usage, { reason });
}

const MODEL_INFO = {
  id: DEMO_MODEL_NAME,
  type: "model",
  display_name: "Tendon's scripted demo",
  created_at: "1970-01-01T00:00:00Z",
  lifecycle: "active",
  line: null,
  deprecated_at: null,
  retires_at: null,
  max_input_tokens: 200_000,
  max_tokens: 64_000,
  capabilities: null,
};

const MODEL_PAGE = {
  data: [MODEL_INFO],
  has_more: false,
  first_id: DEMO_MODEL_NAME,
  last_id: DEMO_MODEL_NAME,
};
