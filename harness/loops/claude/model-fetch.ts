/**
 * The `fetch` that model requests go through: Node's own http(s) clients, with kept connections, through the installation's
 * HTTPS proxy where one applies (Node's fetch knows no proxy). It follows no redirects: a redirected request would carry
 * the model key elsewhere.
 */
import http from "node:http";
import https from "node:https";
import { Readable } from "node:stream";
import { HttpsProxyAgent } from "https-proxy-agent";
import { type ProxySettings, proxyFor } from "../../../kit/dial/proxy-rules.ts";

export type ModelFetch = (input: string | URL | Request, init?: RequestInit) => Promise<Response>;

/** More requests of one harness at a time wait for a connection. */
const MAX_SOCKETS = 1_000;

/** Throws when the proxy's URL cannot be used. */
export function createModelFetch(proxy: ProxySettings): { fetch: ModelFetch; close(): void } {
  const agents = {
    clear: new http.Agent({ keepAlive: true, maxSockets: MAX_SOCKETS }),
    direct: new https.Agent({ keepAlive: true, maxSockets: MAX_SOCKETS }),
    proxied: proxiedAgent(proxy),
  };
  return {
    fetch: (input, init) => {
      const url = new URL(input instanceof Request ? input.url : input);
      const isSecure = url.protocol === "https:";
      const host = url.hostname;
      const port = Number(url.port) || (isSecure ? 443 : 80);
      const viaProxy = isSecure && proxyFor(host, port, proxy) !== undefined;
      const agent = viaProxy ? agents.proxied! : isSecure ? agents.direct : agents.clear;
      return send(url, isSecure, agent, init ?? {});
    },
    close: () => {
      for (const agent of Object.values(agents)) agent?.destroy();
    },
  };
}

function proxiedAgent(proxy: ProxySettings): HttpsProxyAgent<string> | undefined {
  if (!proxy.httpsProxy) return undefined;
  proxyFor("proxy-check.invalid", 443, proxy);
  return new HttpsProxyAgent(proxy.httpsProxy, { keepAlive: true, maxSockets: MAX_SOCKETS });
}

function send(url: URL, isSecure: boolean, agent: http.Agent, init: RequestInit): Promise<Response> {
  const signal = init.signal ?? undefined;
  const headers = Object.fromEntries(new Headers(init.headers).entries());
  // Compressed frames would arrive late, in lumps.
  headers["accept-encoding"] = "identity";
  const body = bytesOf(init.body);
  if (body !== undefined) headers["content-length"] = String(body.length);
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const request = (isSecure ? https : http).request(url, { method: init.method ?? "GET", headers, agent });
    const abort = () =>
      request.destroy(signal?.reason instanceof Error ? signal.reason : new Error("aborted"));
    signal?.addEventListener("abort", abort, { once: true });
    request.once("close", () => signal?.removeEventListener("abort", abort));
    request.on("error", (error) => reject(new TypeError("fetch failed", { cause: error })));
    request.on("response", (response) => resolve(asResponse(response)));
    request.setNoDelay(true);
    request.end(body);
  });
}

/** Bytes go as they are: a copy of a large request is too much. */
function bytesOf(body: RequestInit["body"]): Uint8Array | undefined {
  if (body instanceof Uint8Array) return body;
  return typeof body === "string" ? Buffer.from(body) : undefined;
}

function asResponse(incoming: http.IncomingMessage): Response {
  const headers = new Headers();
  for (let i = 0; i + 1 < incoming.rawHeaders.length; i += 2) {
    headers.append(incoming.rawHeaders[i]!, incoming.rawHeaders[i + 1]!);
  }
  const status = incoming.statusCode ?? 502;
  const hasBody = status !== 204 && status !== 304;
  const body = hasBody ? (Readable.toWeb(incoming) as ReadableStream<Uint8Array>) : null;
  return new Response(body, { status: Math.max(200, status), headers });
}
