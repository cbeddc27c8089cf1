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
import { Replays, type StoredAnswer } from "./replays.ts";
import { RequestBody, readBody } from "./request-body.ts";
import { RouteTable } from "./route-table.ts";
import type { InProcessServices } from "./service-caller.ts";

export interface HttpApiDeps {
  readonly services: InProcessServices;
  readonly routes: readonly ApiRoute[];
  readonly clock: Clock;
  readonly log: Logger;
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
    const isForm = match.route.isForm === true;
    const body = method === "POST" && !isForm ? await readBody(exchange) : new RequestBody("");
    const call = this.callOf(exchange, match.params, body);
    if (method !== "POST" || isForm) return this.run(match.route, call);
    const stored = await this.replays.answer(
      {
        credential: credentialText(request),
        method,
        url: request.url ?? "",
        body: body.text,
        isRepeat: Number(request.headers["x-stainless-retry-count"] ?? 0) > 0,
      },
      () => this.json(match.route, call),
    );
    send(exchange, stored);
  }

  private async run(route: ApiRoute, call: ApiCall): Promise<void> {
    const answer = await route.handle(call);
    if (!("written" in answer)) send(call.exchange, { status: 200, text: textOf(answer) });
  }

  private async json(route: ApiRoute, call: ApiCall): Promise<StoredAnswer> {
    const answer = await route.handle(call);
    if ("written" in answer) throw new Error("a POST answers with JSON");
    return { status: 200, text: textOf(answer) };
  }

  private callOf(exchange: HttpExchange, params: ApiCall["params"], body: RequestBody): ApiCall {
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
