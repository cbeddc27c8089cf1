/** Plain HTTP beside the calls of the contract: a few exact paths, and folders that bring a handler of their own. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { messageOf, REASONS, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { Logger } from "../../kit/log.ts";
import type { HttpHandler } from "../../kit/rpc/mount-connect.ts";

export interface HttpExchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** Path and query. */
  readonly url: URL;
  readonly requestId: string;
}

/** Throws a TendonError for what the caller can act on; the router answers with it. */
export type HttpRoute = (exchange: HttpExchange) => void | Promise<void>;

/** An answer of the router's own that no reason of the catalogue stands for. */
interface HttpFailure {
  status: number;
  type: string;
  message: string;
}

export class HttpRouter {
  private readonly log: Logger;
  private readonly paths = new Map<string, HttpRoute>();
  private readonly folders: { prefix: string; route: HttpRoute }[] = [];

  constructor(log: Logger) {
    this.log = log;
  }

  /** Answers GET and HEAD of exactly this path. */
  get(path: string, route: HttpRoute): void {
    this.paths.set(path, route);
  }

  /** Hands everything below the prefix, which ends in "/", to one route. */
  mount(prefix: string, route: HttpRoute): void {
    this.folders.push({ prefix, route });
  }

  readonly handle: HttpHandler = (request, response) => {
    const exchange: HttpExchange = {
      request: request as IncomingMessage,
      response: response as ServerResponse,
      url: new URL(request.url ?? "/", "http://server"),
      requestId: newId("request"),
    };
    response.setHeader("request-id", exchange.requestId);
    void this.answer(exchange);
  };

  private async answer(exchange: HttpExchange): Promise<void> {
    try {
      await this.route(exchange);
    } catch (error) {
      sendFailure(exchange, this.judge(error, exchange));
    }
  }

  private async route(exchange: HttpExchange): Promise<void> {
    const { pathname } = exchange.url;
    const method = exchange.request.method ?? "";
    const exact = this.paths.get(pathname);
    if (exact !== undefined) {
      if (method === "GET" || method === "HEAD") return exact(exchange);
      exchange.response.setHeader("allow", "GET, HEAD");
      const message = `${pathname} answers GET only`;
      return sendFailure(exchange, { status: 405, type: "invalid_request_error", message });
    }
    const folder = this.folders.find(({ prefix }) => pathname.startsWith(prefix));
    if (folder !== undefined) return folder.route(exchange);
    const message = `nothing here answers ${method} ${pathname}`;
    sendFailure(exchange, { status: 404, type: "not_found_error", message });
  }

  private judge(error: unknown, { requestId, url }: HttpExchange): HttpFailure {
    if (error instanceof TendonError) {
      const { httpStatus, httpType } = REASONS[error.reason];
      return { status: httpStatus, type: httpType, message: error.message };
    }
    this.log.error({ err: error, path: url.pathname, requestId }, `a request failed: ${messageOf(error)}`);
    return { status: 500, type: "api_error", message: "internal error" };
  }
}

export function sendJson({ response }: HttpExchange, status: number, value: unknown): void {
  response.writeHead(status, { "content-type": "application/json", "cache-control": "no-store" });
  response.end(`${JSON.stringify(value)}\n`);
}

function sendFailure(exchange: HttpExchange, { status, type, message }: HttpFailure): void {
  if (exchange.response.headersSent) return void exchange.response.destroy();
  // What is left of the request is not read: the connection could not be used again.
  if (!exchange.request.complete) exchange.response.setHeader("connection", "close");
  sendJson(exchange, status, { type: "error", error: { type, message }, request_id: exchange.requestId });
}
