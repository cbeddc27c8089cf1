/** The far side of webhooks: an HTTP server that keeps what it is sent and answers as a test wants. */
import { createServer, type Server } from "node:http";
import Anthropic from "@anthropic-ai/sdk";
import { freePort } from "./free-port.ts";

export interface ReceivedWebhook {
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly id: string;
  readonly type: string;
  /** Of what it tells: ids. */
  readonly data: Readonly<Record<string, string>>;
}

type Answer = number | { readonly status: number; readonly headers: Record<string, string> };

export interface WebhookReceiver {
  readonly url: string;
  /** Those that were answered with 2xx, in the order of the answers. */
  readonly taken: ReceivedWebhook[];
  /** All that came, in their order. */
  readonly seen: ReceivedWebhook[];
  /** Default: 200. */
  answer: (hook: ReceivedWebhook) => Answer | Promise<Answer>;
  /** Nothing listens any more; `open` goes on at the same port. */
  close(): Promise<void>;
  open(): Promise<void>;
}

export async function startWebhookReceiver(): Promise<WebhookReceiver> {
  const taken: ReceivedWebhook[] = [];
  const seen: ReceivedWebhook[] = [];
  let server: Server;
  // One that nobody else is given while it is closed.
  const port = await freePort();
  const open = async () => {
    server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on("data", (chunk: Buffer) => chunks.push(chunk));
      request.on("end", async () => {
        const hook = received(request.headers as Record<string, string>, Buffer.concat(chunks).toString());
        seen.push(hook);
        const answer = await receiver.answer(hook);
        const { status, headers } = typeof answer === "number" ? { status: answer, headers: {} } : answer;
        if (status >= 200 && status < 300) taken.push(hook);
        response.writeHead(status, headers).end(status === 204 ? undefined : "what nobody keeps");
      });
    });
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject).listen(port, "127.0.0.1", resolve);
    });
  };
  const receiver: WebhookReceiver = {
    get url() {
      return `http://127.0.0.1:${port}/hook?key=url-canary`;
    },
    taken,
    seen,
    answer: () => 200,
    open,
    async close() {
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
    },
  };
  await open();
  return receiver;
}

function received(headers: Readonly<Record<string, string>>, body: string): ReceivedWebhook {
  const { data } = JSON.parse(body) as { data: Record<string, string> };
  return { headers, body, id: headers["webhook-id"] ?? "", type: data.type ?? "", data };
}

const client = new Anthropic({ apiKey: "none" });

/** As existing clients do it; throws when the signature is not of this key. */
export function unwrap({ body, headers }: ReceivedWebhook, key: string) {
  return client.beta.webhooks.unwrap(body, { headers: { ...headers }, key });
}
