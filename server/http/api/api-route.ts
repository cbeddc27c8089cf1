/** What a part of the HTTP API brings: routes, each a translation onto methods of the contract. */
import type { HttpExchange } from "../router.ts";
import type { FormLimits, FormPart } from "./multipart.ts";
import type { RequestBody } from "./request-body.ts";
import type { ServiceCaller } from "./service-caller.ts";

export interface ApiCall {
  /** Values of the path's names, decoded. */
  readonly params: Readonly<Record<string, string>>;
  readonly query: URLSearchParams;
  /** Of a POST; empty for a request without one. */
  readonly body: RequestBody;
  /** The parts of a route that takes a form. To be read once, to its end and all of each file, before anything is made of it. */
  readonly form: (limits: FormLimits) => AsyncGenerator<FormPart>;
  /** Calls methods of the contract as the caller, with the rights of the caller's credential. */
  readonly services: ServiceCaller;
  readonly exchange: HttpExchange;
  /** Aborts when the caller goes away. */
  readonly signal: AbortSignal;
  /** For creations and events: the same for a repeat that the caller marked as one (`Idempotency-Key`), else empty. */
  readonly requestId: string;
}

/** What a route answers with: JSON of this value, JSON text, or nothing more when the route has written the response itself. */
export type ApiAnswer = { readonly json: unknown } | { readonly text: string } | { readonly written: true };

export interface ApiRoute {
  readonly method: "GET" | "POST" | "DELETE";
  /** Segments of the form `{name}` match any one segment. */
  readonly path: string;
  /** A POST whose body is a form of parts, which the handler reads, and no other body. */
  readonly isForm?: true;
  /** Throws a TendonError for what the caller can act on. */
  handle(call: ApiCall): Promise<ApiAnswer>;
}

/** A route whose answer is JSON. */
export function route(
  method: ApiRoute["method"],
  path: string,
  answer: (call: ApiCall) => Promise<unknown>,
): ApiRoute {
  return { method, path, handle: async (call) => ({ json: await answer(call) }) };
}
