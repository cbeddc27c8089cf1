/** One request to a proxy, over Node's own clients with kept connections: a body up to a bound, as it comes. */

import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import type { Readable } from "node:stream";
import { rootCertificates } from "node:tls";

export interface ProxyRequest {
  readonly method: "POST" | "GET" | "DELETE";
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string | Buffer;
  readonly signal: AbortSignal;
}

export interface ProxyResponse {
  readonly status: number;
  readonly headers: http.IncomingHttpHeaders;
  /** The body as text. This, or `bytes`, must be read to its end, or the response `close`d. */
  readonly chunks: AsyncIterable<string>;
  readonly bytes: Readable;
  close(): void;
}

export type SendToProxy = (request: ProxyRequest) => Promise<ProxyResponse>;

const MAX_SOCKETS = 1_000;

/** `caFile` holds authorities to trust besides the usual ones. */
export function createSendToProxy(caFile: string | undefined): { send: SendToProxy; close(): void } {
  const ca = caFile === undefined ? undefined : [...rootCertificates, readFileSync(caFile, "utf8")];
  const clear = new http.Agent({ keepAlive: true, maxSockets: MAX_SOCKETS });
  const secure = new https.Agent({ keepAlive: true, maxSockets: MAX_SOCKETS, ...(ca && { ca }) });
  return {
    send({ method, url, headers, body, signal }) {
      const isSecure = url.startsWith("https:");
      const options = { method, headers: { ...headers }, agent: isSecure ? secure : clear, signal };
      return new Promise((resolve, reject) => {
        const request = (isSecure ? https : http).request(url, options, (response) => {
          resolve({
            status: response.statusCode ?? 0,
            headers: response.headers,
            get chunks() {
              return response.setEncoding("utf8");
            },
            bytes: response,
            close: () => response.destroy(),
          });
        });
        request.once("error", reject);
        request.end(body);
      });
    },
    close() {
      clear.destroy();
      secure.destroy();
    },
  };
}
