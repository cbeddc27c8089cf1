/**
 * The HTTP API that existing clients speak, below `/v1/`: every route translates onto methods of the contract. What holds for
 * all of them is here: bodies, repeats, failures.
 */
import type { IncomingMessage } from "node:http";
import type { Clock } from "../../../kit/clock.ts";
import { messageOf, TendonError } from "../../../kit/errors.ts";
import type { Logger } from "../../../kit/log.ts";
import type { RequestHeaders } from "../../../kit/rpc/context.ts";
import { WORKSPACE_HEADER } from "../../rpc/workspace-choice.ts";
import { type HttpExchange, type HttpRouter, sendJson } from "../router.ts";
import type { ApiAnswer, ApiCall, ApiRoute } from "./api-route.ts";
import { apiFailure } from "./failure.ts";
import { readForm } from "./multipart.ts";
import { type Attempt, Replays, type StoredAnswer } from "./replays.ts";
import { RequestBody, readBody } from "./request-body.ts";
import { RouteTable } from "./route-table.ts";
import type { InProcessServices } from "./service-caller.ts";

export interface HttpApiDeps {
  readonly services: InProcessServices;
  readonly routes: readonly ApiRoute[];
  readonly clock: Clock;
  readonly log: Logger;
}

/** A POST that is being answered. */
interface Change {
  readonly exchange: HttpExchange;
  readonly route: ApiRoute;
  readonly params: ApiCall["params"];
  readonly attempt: Attempt;
}

const MAX_KEY_CHARS = 100;
/** By which existing clients name a workspace, and are told which it was. */
const THEIR_WORKSPACE_HEADER = "anthropic-workspace-id";

export function mountHttpApi(router: HttpRouter, deps: HttpApiDeps): void {
  const api = new HttpApi(deps);
  router.mount("/v1/", (exchange) => api.answer(exchange));
}

class HttpApi {
  private readonly deps: HttpApiDeps;
  private readonly table: RouteTable;
  private readonly replays: Replays;

  constructor(deps: HttpApiDeps) {
    this.deps = deps;
    this.table = new RouteTable(deps.routes);
    this.replays = new Replays(deps.clock);
  }

  /** Does not reject. */
  async answer(exchange: HttpExchange): Promise<void> {
    try {
      await this.route(exchange);
    } catch (error) {
      this.fail(exchange, error);
    }
  }

  private async route(exchange: HttpExchange): Promise<void> {
    const { request, response, url } = exchange;
    const method = request.method === "HEAD" ? "GET" : (request.method ?? "");
    const match = this.table.find(method, url.pathname);
    if (match.kind === "none") {
      throw new TendonError("NOT_FOUND", `nothing here answers ${method} ${url.pathname}`);
    }
    if (match.kind === "method") {
      response.setHeader("allow", match.allowed.join(", "));
      const message = `${url.pathname} answers ${match.allowed.join(", ")} only`;
      const error = { type: "invalid_request_error", message };
      return sendJson(exchange, 405, { type: "error", error, request_id: exchange.requestId });
    }
    // Before its body is read, and before anything is told about what is here.
    if (credentialText(request).trim() === "") throw new TendonError("UNAUTHENTICATED", "show an API key");
    const { route, params } = match;
    if (method !== "POST") return this.run(route, this.callOf(exchange, params, new RequestBody("")));
    const attempt = this.replays.begin({
      credential: credentialText(request),
      method,
      url: request.url ?? "",
      isRepeat: Number(request.headers["x-stainless-retry-count"] ?? 0) > 0,
    });
    const change = { exchange, route, params, attempt };
    send(exchange, await (route.isForm ? this.form(change) : this.post(change)));
  }

  private async run(route: ApiRoute, call: ApiCall): Promise<void> {
    const answer = await route.handle(call);
    if (!("written" in answer)) send(call.exchange, { status: 200, text: textOf(answer) });
  }

  private async post(change: Change): Promise<StoredAnswer> {
    const { exchange, params, attempt } = change;
    const body = await readBody(exchange);
    const call = this.callOf(exchange, params, body);
    return (await attempt.first(body.text)) ?? this.make(change, call);
  }

  /** What a form holds is known at its end alone: what was answered before is told apart there, before anything is made. */
  private async form(change: Change): Promise<StoredAnswer> {
    const { exchange, params, attempt } = change;
    let first: StoredAnswer | undefined;
    const call = this.callOf(exchange, params, new RequestBody(""), async (digest) => {
      first = await attempt.first(digest);
      if (first !== undefined) throw new TendonError("CANCELLED", "it was answered before");
    });
    try {
      return await this.make(change, call);
    } catch (error) {
      if (first !== undefined) return first;
      throw error;
    }
  }

  private async make({ route, attempt }: Change, call: ApiCall): Promise<StoredAnswer> {
    let stored: StoredAnswer | undefined;
    try {
      const answer = await route.handle(call);
      if ("written" in answer) throw new Error("a POST answers with JSON");
      stored = { status: 200, text: textOf(answer) };
      return stored;
    } finally {
      attempt.end(stored);
    }
  }

  private callOf(
    exchange: HttpExchange,
    params: ApiCall["params"],
    body: RequestBody,
    onWholeForm: (digest: string) => Promise<void> = async () => {},
  ): ApiCall {
    const { request, response, requestId, url } = exchange;
    const gone = new AbortController();
    response.once("close", () => gone.abort(new TendonError("CANCELLED", "the caller went away")));
    const { remoteAddress, remotePort } = request.socket;
    const services = this.deps.services.as({
      headers: headersOf(request),
      peer: `${remoteAddress}:${remotePort}`,
      requestId,
      signal: gone.signal,
      admission: {},
      told: (workspaceId) => {
        if (!response.headersSent) response.setHeader(THEIR_WORKSPACE_HEADER, workspaceId);
      },
    });
    const repeatId = idempotencyKey(request);
    return {
      params,
      query: url.searchParams,
      body,
      form: (limits) => readForm(request, limits, onWholeForm),
      services,
      exchange,
      signal: gone.signal,
      requestId: repeatId,
    };
  }

  private fail(exchange: HttpExchange, error: unknown): void {
    const { request, response, requestId, url } = exchange;
    if (response.headersSent) return void response.destroy();
    if (!(error instanceof TendonError)) {
      const facts = { err: error, path: url.pathname, requestId };
      this.deps.log.error(facts, `a request failed: ${messageOf(error)}`);
    }
    const failure = apiFailure(
      error instanceof TendonError ? error : new TendonError("INTERNAL", "internal error"),
      requestId,
    );
    // What is left of the request is not read: the connection could not be used again.
    if (!request.complete) response.setHeader("connection", "close");
    for (const [name, value] of Object.entries(failure.headers)) response.setHeader(name, value);
    sendJson(exchange, failure.status, failure.body);
  }
}

function send({ response }: HttpExchange, { status, text }: StoredAnswer): void {
  response.writeHead(status, { "content-type": "application/json", "cache-control": "no-store" });
  response.end(text);
}

function textOf(answer: Exclude<ApiAnswer, { written: true }>): string {
  return "text" in answer ? answer.text : `${JSON.stringify(answer.json)}\n`;
}

function credentialText({ headers }: IncomingMessage): string {
  return `${headers.authorization ?? ""} ${String(headers["x-api-key"] ?? "")}`;
}

function headersOf({ headers }: IncomingMessage): RequestHeaders {
  return {
    get(name) {
      const value =
        headers[name] ?? (name === WORKSPACE_HEADER ? headers[THEIR_WORKSPACE_HEADER] : undefined);
      return Array.isArray(value) ? value[0] : value;
    },
  };
}

/** Throws INVALID_FIELD for one that is none. */
function idempotencyKey({ headers }: IncomingMessage): string {
  const key = headers["idempotency-key"];
  if (key === undefined) return "";
  if (typeof key !== "string" || key.length > MAX_KEY_CHARS || !/^[\x21-\x7e]+$/.test(key)) {
    throw new TendonError(
      "INVALID_FIELD",
      `Idempotency-Key: must be 1 to ${MAX_KEY_CHARS} visible characters`,
    );
  }
  return `http:${key}`;
}
