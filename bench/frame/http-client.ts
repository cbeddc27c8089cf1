/** Requests and streams over plain HTTP, with connections that are kept. */
import { Agent, type IncomingMessage, request as send } from "node:http";
import { type Arrivals, atMs } from "./arrivals.ts";
import type { BenchContext } from "./bench.ts";

export interface HttpClient {
  /** The answer's body. Rejects for anything but 200. */
  call(method: "GET" | "POST" | "DELETE", path: string, body?: string): Promise<string>;
  /** Opens a stream; each of its events arrives at `arrivals`. Resolves when its head has come. */
  open(path: string, arrivals: Arrivals, headers?: Readonly<Record<string, string>>): Promise<HttpStream>;
}

export interface HttpStream {
  close(): void;
}

export function createHttpClient(context: BenchContext, url: string, key = ""): HttpClient {
  const agent = new Agent({ keepAlive: true, maxSockets: 16 });
  const streams = new Agent({ keepAlive: false, maxSockets: Number.POSITIVE_INFINITY });
  context.defer(() => {
    agent.destroy();
    streams.destroy();
  });
  const authorization = key === "" ? {} : { authorization: `Bearer ${key}` };
  return {
    async call(method, path, body) {
      const response = await new Promise<IncomingMessage>((resolve, reject) => {
        const headers = { ...authorization, "content-type": "application/json" };
        send(`${url}${path}`, { method, agent, headers }, resolve).on("error", reject).end(body);
      });
      let text = "";
      for await (const chunk of response.setEncoding("utf8")) text += chunk;
      if (response.statusCode !== 200) throw new Error(`${method} ${path}: ${response.statusCode} ${text}`);
      return text;
    },
    async open(path, arrivals, headers = {}) {
      const response = await new Promise<IncomingMessage>((resolve, reject) => {
        const options = { agent: streams, headers: { ...authorization, ...headers } };
        send(`${url}${path}`, options, resolve).on("error", reject).end();
      });
      if (response.statusCode !== 200) throw new Error(`GET ${path}: ${response.statusCode}`);
      response.on("error", () => {}); // closed by us
      let rest = "";
      response.setEncoding("utf8").on("data", (chunk: string) => {
        const blocks = (rest + chunk).split("\n\n");
        rest = blocks.pop() ?? "";
        for (const block of blocks) if (!block.startsWith(":")) arrivals.arrived(atMs());
      });
      return { close: () => response.destroy() };
    },
  };
}
