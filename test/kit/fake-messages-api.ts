/**
 * The Messages API faked at its wire, for tests and benches: as strict as the real one, and able to fail in its ways.
 * Scripts say what each accepted request gets; refused requests never reach the script.
 */
import { createHash, randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import {
  type AnswerBlock,
  errorBody,
  roughTokens,
  streamedText,
} from "../../harness/demo-model/messages-wire.ts";
import { eventually } from "./eventually.ts";
import { followInstructions } from "./fake-messages-assistant.ts";
import { type InputUsage, inputTokensOf, PromptCache } from "./fake-messages-cache.ts";
import { checkHistory, GivenAnswers } from "./fake-messages-history.ts";
import {
  type Json,
  type MessagesRequest,
  parseJson,
  parseRequest,
  Refusal,
} from "./fake-messages-request.ts";
import { checkParts } from "./fake-messages-rules.ts";
import { type PreparedAnswer, sendAnswer, stopOf } from "./fake-messages-stream.ts";
import type { Answer, Turn } from "./fake-messages-turn.ts";

export * from "./fake-messages-turn.ts";
export { followInstructions, type MessagesRequest };

const MAX_BODY_BYTES = 32 * 1024 * 1024;

/** Decides on the n-th accepted request, from 1. */
export type Script = (request: MessagesRequest, n: number) => Turn | Promise<Turn>;

export interface FakeMessagesApiOptions {
  /** Default "test-key". */
  apiKey?: string;
  /** A function, or one turn (or function) per accepted request, in order. Default: `followInstructions`. */
  script?: Script | readonly (Turn | Script)[];
  /** Other models are not found. Default: any name is a model. */
  models?: readonly string[];
  /** Shorter prefixes are not cached. Default: as documented for the model. */
  minCacheTokens?: number;
  /** Longer requests are refused as too long. Default: any length is taken, and models say that they take 200,000. */
  maxInputTokens?: number;
  /** The oldest records beyond this many are forgotten. Default 10,000. */
  maxRecorded?: number;
}

export type Outcome = "pending" | "refused" | "failed" | "answered" | "cut" | "client_closed";

export interface RecordedRequest {
  path: string;
  headers: IncomingHttpHeaders;
  /** Exactly as sent. */
  body: Buffer;
  /** Undefined when the body is not JSON. */
  json: Json | undefined;
  /** Milliseconds since 1970, with fractions, at which the body was complete. */
  receivedAtMs: number;
  outcome: Outcome;
  /** Why it was refused. */
  refusal?: string;
  /** How its input was counted, once it is answered. */
  input?: InputUsage;
  /** Bytes of the response body, once the answer is over: the places at which a stream of it can be cut. */
  responseBytes?: number;
}

export interface FakeMessagesApi {
  readonly url: string;
  readonly apiKey: string;
  /** Every POST of a message, in order of arrival, refused ones too. */
  readonly requests: readonly RecordedRequest[];
  /** The reasons of all refusals so far: empty at the end of most tests. */
  readonly refusals: readonly string[];
  /** Adds turns behind the queue. Throws when the script is a function. */
  enqueue(...turns: (Turn | Script)[]): void;
  /** The n-th recorded request, from 1, once it has arrived. Rejects after `withinMs` (10 s). */
  received(n: number, withinMs?: number): Promise<RecordedRequest>;
  /** Ends open answers, closes every connection. May be called twice. */
  stop(): Promise<void>;
}

export async function startFakeMessagesApi(options: FakeMessagesApiOptions = {}): Promise<FakeMessagesApi> {
  const fake = new Fake(options);
  const server = createServer((request, response) => {
    fake.serve(request, response).catch(() => response.destroy());
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    apiKey: fake.apiKey,
    requests: fake.requests,
    refusals: fake.refusals,
    enqueue: (...turns) => fake.enqueue(turns),
    received: (n, withinMs = 60_000) => eventually(() => fake.requests[n - 1], { withinMs, everyMs: 2 }),
    stop: async () => {
      fake.stop();
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      await closed;
    },
  };
}

class Fake {
  readonly apiKey: string;
  readonly requests: RecordedRequest[] = [];
  readonly refusals: string[] = [];
  private readonly options: FakeMessagesApiOptions;
  private readonly queue: (Turn | Script)[] | undefined;
  private readonly cache: PromptCache;
  private readonly given = new GivenAnswers();
  private readonly callPrefix = createHash("sha256").update(randomUUID()).digest("hex").slice(0, 8);
  private readonly open = new Set<AbortController>();
  private acceptedCount = 0;

  constructor(options: FakeMessagesApiOptions) {
    this.options = options;
    this.apiKey = options.apiKey ?? "test-key";
    this.queue = Array.isArray(options.script) ? [...options.script] : undefined;
    this.cache = new PromptCache(options.minCacheTokens);
  }

  enqueue(turns: readonly (Turn | Script)[]): void {
    if (!this.queue) throw new Error("the script is a function: it has no queue");
    this.queue.push(...turns);
  }

  async serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const requestId = `req_${randomUUID().replaceAll("-", "")}`;
    response.setHeader("request-id", requestId);
    const path = new URL(request.url ?? "/", "http://fake").pathname;
    const body = await readBody(request);
    const record =
      request.method === "POST" && path === "/v1/messages" ? this.record(request, path, body) : undefined;
    try {
      this.checkHeaders(request.headers);
      if (body === "too large")
        throw new Refusal("Request exceeds the maximum size", 413, "request_too_large");
      if (record) await this.serveMessage(record, response, requestId);
      else sendJson(response, 200, this.answerRest(`${request.method} ${path}`, request.headers, body));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.refusals.push(error.message);
      if (record) Object.assign(record, { outcome: "refused", refusal: error.message });
      sendJson(response, error.status, errorBody(error.type, error.message, requestId));
    }
  }

  private record(request: IncomingMessage, path: string, body: Buffer | "too large"): RecordedRequest {
    const record: RecordedRequest = {
      path,
      headers: request.headers,
      body: body === "too large" ? Buffer.alloc(0) : body,
      json: undefined,
      receivedAtMs: performance.timeOrigin + performance.now(),
      outcome: "pending",
    };
    this.requests.push(record);
    if (this.requests.length > (this.options.maxRecorded ?? 10_000)) this.requests.shift();
    return record;
  }

  private checkHeaders(headers: IncomingHttpHeaders): void {
    const key = headers.authorization?.match(/^Bearer (.*)$/)?.[1] ?? headers["x-api-key"];
    if (key !== this.apiKey)
      throw new Refusal(
        key ? "invalid x-api-key" : "x-api-key header is required",
        401,
        "authentication_error",
      );
    if (!headers["anthropic-version"]) throw new Refusal("anthropic-version: header is required");
  }

  private accept(json: Json, headers: IncomingHttpHeaders, purpose: "create" | "count"): MessagesRequest {
    const request = parseRequest(json, String(headers["anthropic-version"]), purpose);
    if (this.options.models && !this.options.models.includes(request.model))
      throw new Refusal(`model: ${request.model}`, 404, "not_found_error");
    checkParts(request);
    checkHistory(request, this.given);
    return request;
  }

  private answerRest(route: string, headers: IncomingHttpHeaders, body: Buffer): Json {
    if (route === "POST /v1/messages/count_tokens") {
      const counted = new PromptCache(0).use(this.accept(parseJson(body), headers, "count"));
      return {
        input_tokens: counted.inputTokens + counted.cacheCreation5mTokens + counted.cacheCreation1hTokens,
      };
    }
    const id = /^GET \/v1\/models\/([^/]+)$/.exec(route)?.[1];
    if (id === undefined) throw new Refusal("Not found", 404, "not_found_error");
    const name = decodeURIComponent(id);
    if (this.options.models && !this.options.models.includes(name))
      throw new Refusal(`model: ${name}`, 404, "not_found_error");
    return modelInfo(name, this.options.maxInputTokens ?? 200_000);
  }

  private checkLength(request: MessagesRequest): void {
    const most = this.options.maxInputTokens ?? Number.POSITIVE_INFINITY;
    const tokens = most === Number.POSITIVE_INFINITY ? 0 : inputTokensOf(request);
    if (tokens > most) throw new Refusal(`prompt is too long: ${tokens} tokens > ${most} maximum`);
  }

  private async serveMessage(
    record: RecordedRequest,
    response: ServerResponse,
    requestId: string,
  ): Promise<void> {
    record.json = parseJson(record.body);
    const request = this.accept(record.json, record.headers, "create");
    this.checkLength(request);
    const n = ++this.acceptedCount;
    const gone = this.goneSignal(response);
    const turn = await this.nextTurn(request, n);
    switch (turn.kind) {
      case "answer": {
        const input = this.cache.use(request);
        record.input = input;
        const prepared = this.prepare(turn, request, n, requestId, input);
        const sent = await sendAnswer(response, prepared, { stream: request.stream, gone });
        Object.assign(record, { outcome: sent.outcome, responseBytes: sent.bytes });
        return;
      }
      case "http_failure":
        record.outcome = "failed";
        for (const [name, value] of Object.entries(turn.headers ?? {})) response.setHeader(name, value);
        sendJson(response, turn.status, errorBody(turn.errorType, turn.message, requestId));
        return;
      case "drop":
        record.outcome = "cut";
        response.destroy();
        return;
      case "hang":
        if (!gone.aborted) await once(gone, "abort");
        record.outcome = "client_closed";
    }
  }

  /** Aborts when the client goes or the fake stops. */
  private goneSignal(response: ServerResponse): AbortSignal {
    const gone = new AbortController();
    this.open.add(gone);
    response.once("close", () => {
      this.open.delete(gone);
      gone.abort();
    });
    return gone.signal;
  }

  stop(): void {
    for (const gone of this.open) gone.abort();
  }

  /** A script that has run out, or fails, is the test's mistake: it shows as a refusal, which no client retries. */
  private async nextTurn(request: MessagesRequest, n: number): Promise<Turn> {
    const next = this.queue
      ? this.queue.shift()
      : ((this.options.script as Script | undefined) ?? followInstructions);
    if (!next) throw new Refusal(`the script has no turn for request ${n}`);
    try {
      return typeof next === "function" ? await next(request, n) : next;
    } catch (error) {
      throw new Refusal(`the script failed at request ${n}: ${(error as Error).message}`);
    }
  }

  private prepare(
    answer: Answer,
    request: MessagesRequest,
    n: number,
    requestId: string,
    input: InputUsage,
  ): PreparedAnswer {
    const number = String(n).padStart(6, "0");
    const blocks = answer.blocks.map(
      (block, i): AnswerBlock =>
        block.type === "tool_use"
          ? { ...block, id: block.id ?? `toolu_${this.callPrefix}_${number}_${i}` }
          : block,
    );
    const outputTokens = blocks.reduce((sum, block) => sum + roughTokens(streamedText(block)), 1);
    const usage = { ...input, outputTokens, ...answer.usage };
    this.given.remember(blocks.map(asSentBack), stopOf(answer).reason === "pause_turn");
    return {
      answer,
      blocks,
      requestId,
      head: { id: `msg_${this.callPrefix}_${number}`, model: request.model, usage },
    };
  }
}

/** The block as the next request has to hold it. */
function asSentBack(block: AnswerBlock): Json {
  if (block.type !== "tool_use") return { ...block };
  const { type, id, name, inputJson } = block;
  try {
    return { type, id, name, input: JSON.parse(inputJson) };
  } catch {
    return { type, id, name };
  }
}

async function readBody(request: IncomingMessage): Promise<Buffer | "too large"> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes <= MAX_BODY_BYTES) chunks.push(chunk);
  }
  return bytes <= MAX_BODY_BYTES ? Buffer.concat(chunks) : "too large";
}

function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

function modelInfo(id: string, maxInputTokens: number): Json {
  return {
    id,
    type: "model",
    display_name: id,
    created_at: "2026-01-01T00:00:00Z",
    lifecycle: "active",
    line: null,
    deprecated_at: null,
    retires_at: null,
    max_input_tokens: maxInputTokens,
    max_tokens: 64_000,
    capabilities: null,
  };
}
