/** One request of a sandbox to a host of variables, and its answer. */
import type { ClientRequest, IncomingMessage, ServerResponse } from "node:http";
import { type Agent, request as httpsRequest } from "node:https";
import { pipeline } from "node:stream/promises";
import type { Logger } from "../../kit/log.ts";
import { answerTo } from "../../kit/network/answer.ts";
import { placeholdersIn } from "../../kit/vault/placeholder.ts";
import type { VariableGrant } from "../credentials/credentials.ts";
import { CredentialRefusal } from "../credentials/refusal.ts";
import { OutboundRefusal } from "../outbound/refusal.ts";
import type { SandboxConnection } from "../tunnels/sandbox-connection.ts";
import { EgressRefusal } from "./refusal.ts";
import { type BodyBudget, type RequestBody, readBody } from "./request-body.ts";
import { checkHead, type Headers, headersOf, passedOn } from "./request-head.ts";
import { scrubbed } from "./response-body.ts";
import {
  placeholdersInBody,
  placeholdersInHeaders,
  substituteInBody,
  substituteInHeaders,
  type ValueFor,
} from "./substitution.ts";
import type { ConnectionVariables } from "./variables.ts";

export interface ExchangeScope {
  readonly connection: SandboxConnection;
  readonly variables: ConnectionVariables;
  /** Connections to the host, of this sandbox's connection alone. */
  readonly agent: Agent;
  readonly budget: BodyBudget;
  readonly log: Logger;
}

/** Of what a host answers. */
const MAX_HEADER_BYTES = 64 * 1024;
/** Requests that may be sent again when the connection turns out to have been closed meanwhile. */
const REPEATABLE = new Set(["GET", "HEAD", "OPTIONS", "PUT", "DELETE"]);
const CERTIFICATE = /CERT|SELF_SIGNED|SIGNATURE|ISSUER|ALTNAME/;

interface Outgoing {
  readonly headers: Headers;
  readonly body: RequestBody;
  /** In this order; each is told how it went. */
  readonly used: readonly VariableGrant[];
}

export class EgressExchange {
  private readonly scope: ExchangeScope;
  private readonly request: IncomingMessage;
  private readonly response: ServerResponse;

  constructor(scope: ExchangeScope, request: IncomingMessage, response: ServerResponse) {
    this.scope = scope;
    this.request = request;
    this.response = response;
  }

  /** Resolves when the answer is over, however it ended. */
  async run(): Promise<void> {
    const { connection, variables, budget } = this.scope;
    let body: RequestBody | undefined;
    try {
      checkHead(this.request, connection);
      const headers = headersOf(this.request.rawHeaders);
      const asked = await variables.known();
      const { sessionId } = connection;
      const isLookedInto = variables.areInBodies;
      body = await readBody(this.request, headers, { isLookedInto, budget, sessionId });
      await this.passOn(await this.substituted(headers, body, asked));
    } catch (error) {
      this.refuse(this.asRefusal(error));
    } finally {
      if (body?.kind === "whole") body.release();
    }
  }

  private async substituted(received: Headers, body: RequestBody, asked: boolean): Promise<Outgoing> {
    const { connection, variables } = this.scope;
    const headers = passedOn(received, connection);
    const places = {
      header: placeholdersInHeaders(headers),
      body: body.kind === "whole" ? placeholdersInBody(body.bytes) : [],
      url: placeholdersIn(this.request.url ?? ""),
    };
    if (body.kind === "unread" && body.why !== undefined) {
      for (const grant of variables.forBodies()) grant.left(body.why);
    }
    const names = [...new Set([...places.header, ...places.body, ...places.url])];
    if (names.length === 0) return { headers, body, used: [] };
    const grants = await variables.fresh(names, asked);
    const used = new Set<VariableGrant>();
    const valueIn =
      (isAllowed: (grant: VariableGrant) => boolean): ValueFor =>
      (name) => {
        const grant = grants.get(name);
        if (grant === undefined || !isAllowed(grant)) return undefined;
        used.add(grant);
        return grant.value;
      };
    this.noteLeft(places, grants);
    const type = headers.get("content-type")?.[0] ?? "";
    return {
      headers: substituteInHeaders(
        headers,
        valueIn(({ inHeaders }) => inHeaders),
        (encoded) => variables.sent(encoded),
      ),
      body:
        body.kind === "whole" && places.body.length > 0
          ? {
              ...body,
              bytes: substituteInBody(
                body.bytes,
                type,
                valueIn(({ inBody }) => inBody),
              ),
            }
          : body,
      used: [...used],
    };
  }

  /** What stays although the session has the variable for this host. */
  private noteLeft(
    places: Readonly<Record<"header" | "body" | "url", readonly string[]>>,
    grants: ReadonlyMap<string, VariableGrant>,
  ): void {
    for (const name of places.header)
      if (grants.get(name)?.inHeaders === false) grants.get(name)?.left("not_in_headers");
    for (const name of places.body)
      if (grants.get(name)?.inBody === false) grants.get(name)?.left("not_in_body");
    // Addresses are written down on the way and at the far side: no value is put into one.
    for (const name of places.url) grants.get(name)?.left("not_in_urls");
  }

  private async passOn(outgoing: Outgoing): Promise<void> {
    const { request, response } = this;
    let answer: IncomingMessage;
    try {
      answer = await this.send(
        outgoing,
        REPEATABLE.has(request.method ?? "") && outgoing.body.kind !== "unread",
      );
    } catch (error) {
      for (const grant of outgoing.used) grant.used("no_answer");
      throw error;
    }
    const status = answer.statusCode ?? 0;
    for (const grant of outgoing.used) grant.used(String(status));
    const values = this.scope.variables.values;
    const method = request.method ?? "";
    try {
      const { headers, through } = scrubbed(answer, headersOf(answer.rawHeaders), { method, values });
      // An answer that came before all was sent: what follows on this connection could not be told from the rest.
      if (!request.complete) response.shouldKeepAlive = false;
      response.writeHead(status, headerFields(headers));
      response.flushHeaders();
      await pipeline([answer, ...through, response]);
    } catch (error) {
      answer.destroy();
      // Whoever waits for the rest is told that it is not whole.
      if (response.headersSent) response.destroy();
      else throw error;
    }
  }

  private async send(outgoing: Outgoing, isRepeatable: boolean): Promise<IncomingMessage> {
    const { connection, agent } = this.scope;
    const { headers, body } = outgoing;
    const sent = httpsRequest({
      agent,
      host: connection.host.replace(/^\[|\]$/g, ""),
      port: connection.port,
      method: this.request.method,
      path: this.request.url,
      headers: { ...headerFields(headers), ...lengthOf(body) },
      setHost: false,
      maxHeaderSize: MAX_HEADER_BYTES,
    });
    const giveUp = () => sent.destroy();
    this.response.once("close", giveUp);
    sent.once("close", () => this.response.off("close", giveUp));
    const answer = answerTo(sent);
    this.write(sent, body);
    try {
      return await answer;
    } catch (error) {
      // The host had closed the connection while nothing was asked.
      if (sent.reusedSocket && isRepeatable && !this.response.destroyed) return this.send(outgoing, false);
      throw error;
    }
  }

  private write(sent: ClientRequest, body: RequestBody): void {
    if (body.kind === "none") sent.end();
    else if (body.kind === "whole") sent.end(body.bytes);
    else {
      if (body.begun.length > 0) sent.write(body.begun);
      this.request.once("close", () => {
        if (!this.request.complete) sent.destroy();
      });
      this.request.pipe(sent);
    }
  }

  private refuse(refusal: EgressRefusal): void {
    const { request, response, scope } = this;
    if (response.headersSent || response.destroyed) return void response.destroy();
    const { sessionId, host } = scope.connection;
    scope.log.info({ sessionId, host, reason: refusal.reason }, "a sandbox's request was refused");
    const text = `Tendon: ${refusal.message}\n`;
    response.writeHead(refusal.status, {
      "content-type": "text/plain; charset=utf-8",
      "content-length": Buffer.byteLength(text),
      "tendon-egress-error": refusal.reason,
      // What of the request was not read is not read any more.
      connection: "close",
    });
    response.end(text);
    request.unpipe();
    request.resume();
  }

  private asRefusal(error: unknown): EgressRefusal {
    const { host } = this.scope.connection;
    if (error instanceof EgressRefusal) return error;
    if (error instanceof CredentialRefusal) return new EgressRefusal("unavailable", error.message);
    if (error instanceof OutboundRefusal) {
      if (error.isDenial) return new EgressRefusal("forbidden", error.message);
      if (CERTIFICATE.test(error.message)) {
        return new EgressRefusal(
          "certificate",
          `${error.message}: the host's certificate is not trusted, and nothing was sent`,
        );
      }
      return new EgressRefusal("unreachable", error.message);
    }
    const { code } = error as NodeJS.ErrnoException;
    return new EgressRefusal(
      "unreachable",
      `${host} broke the connection${code === undefined ? "" : ` (${code})`}`,
    );
  }
}

function headerFields(headers: Headers): Record<string, string | string[]> {
  return Object.fromEntries(
    [...headers].map(([name, [first = "", ...more]]) => [name, more.length === 0 ? first : [first, ...more]]),
  );
}

function lengthOf(body: RequestBody): Record<string, string> {
  if (body.kind === "none") return {};
  if (body.kind === "whole") return { "content-length": String(body.bytes.length) };
  return body.length === undefined
    ? { "transfer-encoding": "chunked" }
    : { "content-length": String(body.length) };
}
