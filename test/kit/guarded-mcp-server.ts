/** The far side of an MCP server that takes nothing but tokens of its authorization server, and says where that is (RFC 9728). */
import type { AuthorizationServer } from "./authorization-server.ts";
import { type CountingMcpServer, startCountingMcpServer } from "./counting-mcp-server.ts";

export interface GuardedMcpServer extends CountingMcpServer {
  /** What a test may change; as it stands all is well. */
  readonly guard: {
    /** Where its metadata is; `header`: at a place that only the challenge names. */
    place: "header" | "path" | "root" | "nowhere";
    /** Scope in the challenge; empty for none. */
    scope: string;
    /** Put over its metadata. */
    metadata: Record<string, unknown>;
  };
  /** The tokens that were good, in the order in which they came. */
  readonly taken: string[];
  reset(): void;
}

const usual = () => ({ place: "path" as const, scope: "", metadata: {} });

export async function startGuardedMcpServer(authorization: AuthorizationServer): Promise<GuardedMcpServer> {
  const server = await startCountingMcpServer();
  const guard: GuardedMcpServer["guard"] = usual();
  const taken: string[] = [];
  const { origin } = new URL(server.url);
  const places = {
    header: "/metadata-of-mine",
    path: "/.well-known/oauth-protected-resource/mcp",
    root: "/.well-known/oauth-protected-resource",
    nowhere: "",
  };
  server.answers = (request, response) => {
    if (request.url !== "/mcp") {
      const isThere = request.method === "GET" && request.url === places[guard.place];
      if (!isThere) return response.writeHead(404).end() !== undefined;
      const said = { resource: server.url, authorization_servers: [authorization.issuer] };
      response.writeHead(200, { "content-type": "application/json" });
      response.end(JSON.stringify({ ...said, scopes_supported: ["read", "write"], ...guard.metadata }));
      return true;
    }
    const token = (request.headers.authorization ?? "").replace(/^Bearer /, "");
    if (authorization.access.get(token) === server.url) {
      taken.push(token);
      return false;
    }
    const named = [
      ...(guard.place === "header" ? [`resource_metadata="${origin}${places.header}"`] : []),
      ...(guard.scope === "" ? [] : [`scope="${guard.scope}"`]),
    ];
    response
      .writeHead(401, { "www-authenticate": `Bearer error="invalid_token", ${named.join(", ")}` })
      .end();
    return true;
  };
  return Object.assign(server, {
    guard,
    taken,
    reset: () => void Object.assign(guard, usual()),
  });
}
