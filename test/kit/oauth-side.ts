/**
 * The far side of OAuth: a token endpoint whose refresh tokens are good once, and that ends the whole grant when one is shown
 * again; and an MCP server that takes nothing but a current access token.
 */
import { randomBytes } from "node:crypto";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface OauthSide {
  /** "http://127.0.0.1:port" */
  readonly url: string;
  readonly mcpUrl: string;
  readonly tokenUrl: string;
  /** A grant with one access token and one refresh token. */
  newGrant(): { accessToken: string; refreshToken: string };
  /** Ends the access token, as time would. */
  expire(accessToken: string): void;
  /** Every request to the token endpoint. */
  readonly refreshes: {
    readonly outcome: "granted" | "reused" | "unknown" | "broken";
    readonly authorization: string;
    readonly form: URLSearchParams;
  }[];
  /** Every request to the MCP server with its authorization. */
  readonly calls: { readonly authorization: string; readonly status: number }[];
  /** All tokens that it ever gave. */
  readonly secrets: string[];
  /** What the token endpoint answers in place of tokens, until it is undefined again. */
  failWith: { status: number; body: string } | undefined;
  /** Held back before each answer of the token endpoint. */
  delayMs: number;
  /** Requests to the token endpoint that have come, answered or not. */
  asked: number;
  expiresInS: number;
  close(): Promise<void>;
}

interface Grant {
  readonly access: Set<string>;
  refresh: string;
  readonly used: Set<string>;
  ended: boolean;
}

export async function startOauthSide(): Promise<OauthSide> {
  const grants: Grant[] = [];
  const server = createServer((request, response) => {
    void answer(request, response).catch(() => response.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const token = (prefix: string) => {
    const made = `${prefix}-${randomBytes(12).toString("hex")}`;
    side.secrets.push(made);
    return made;
  };
  const side: OauthSide = {
    url,
    mcpUrl: `${url}/mcp`,
    tokenUrl: `${url}/token`,
    refreshes: [],
    calls: [],
    secrets: [],
    failWith: undefined,
    delayMs: 0,
    asked: 0,
    expiresInS: 3600,
    newGrant() {
      const accessToken = token("canary-access");
      const refreshToken = token("canary-refresh");
      grants.push({ access: new Set([accessToken]), refresh: refreshToken, used: new Set(), ended: false });
      return { accessToken, refreshToken };
    },
    expire(accessToken) {
      for (const grant of grants) grant.access.delete(accessToken);
    },
    close() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      return closed;
    },
  };

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks).toString();
    const authorization = request.headers.authorization ?? "";
    if (request.url === "/token") return refresh(new URLSearchParams(body), authorization, response);
    const bearer = authorization.replace(/^Bearer /, "");
    const isGood = grants.some((grant) => !grant.ended && grant.access.has(bearer));
    const status = isGood ? 200 : 401;
    side.calls.push({ authorization, status });
    // What a careless server says of what it was sent.
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify({ jsonrpc: "2.0", id: 1, result: {}, echoed: authorization }));
  }

  async function refresh(
    form: URLSearchParams,
    authorization: string,
    response: ServerResponse,
  ): Promise<void> {
    side.asked += 1;
    if (side.delayMs > 0) await new Promise((resolve) => setTimeout(resolve, side.delayMs));
    const shown = form.get("refresh_token") ?? "";
    const say = (outcome: OauthSide["refreshes"][number]["outcome"], status: number, body: string) => {
      side.refreshes.push({ outcome, authorization, form });
      response.writeHead(status, { "content-type": "application/json" });
      response.end(body);
    };
    if (side.failWith !== undefined) return say("broken", side.failWith.status, side.failWith.body);
    const grant = grants.find(({ refresh: current, used }) => current === shown || used.has(shown));
    const refused = JSON.stringify({ error: "invalid_grant", error_description: `what is ${shown}?` });
    if (grant === undefined || grant.ended) return say("unknown", 400, refused);
    if (grant.refresh !== shown) {
      grant.ended = true;
      return say("reused", 400, refused);
    }
    grant.used.add(shown);
    grant.refresh = token("canary-refresh");
    const accessToken = token("canary-access");
    grant.access.add(accessToken);
    const tokens = { access_token: accessToken, token_type: "Bearer", refresh_token: grant.refresh };
    say("granted", 200, JSON.stringify({ ...tokens, expires_in: side.expiresInS }));
  }

  return side;
}
