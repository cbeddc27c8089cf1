/** The far side of OTLP over HTTP: takes spans as JSON, or fails in the ways that receivers do. */
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

export interface ReceivedSpan {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId: string;
  readonly name: string;
  readonly kind: number;
  /** `service.name` and `service.instance.id` of its resource. */
  readonly service: string;
  readonly instance: string;
  readonly startNanos: bigint;
  readonly endNanos: bigint;
  readonly attributes: Readonly<Record<string, string>>;
  readonly failed: boolean;
}

export interface SpanReceiver {
  readonly url: string;
  readonly spans: readonly ReceivedSpan[];
  /** Everything that came, as text. */
  readonly bodies: readonly string[];
  readonly requests: number;
  /** Headers of the newest request. */
  readonly headers: Readonly<Record<string, unknown>>;
  /** What it does from now on. */
  behave(how: "take" | "refuse" | "hang"): void;
  stop(): Promise<void>;
}

interface Value {
  stringValue?: string;
  intValue?: string | number;
  boolValue?: boolean;
  doubleValue?: number;
}
interface Attribute {
  key: string;
  value: Value;
}
interface WireSpan {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  kind: number;
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  attributes?: Attribute[];
  status?: { code?: number };
}
interface Message {
  resourceSpans: {
    resource: { attributes: Attribute[] };
    scopeSpans: { spans: WireSpan[] }[];
  }[];
}

export async function startSpanReceiver(): Promise<SpanReceiver> {
  const spans: ReceivedSpan[] = [];
  const bodies: string[] = [];
  let requests = 0;
  let headers: Record<string, unknown> = {};
  let how: "take" | "refuse" | "hang" = "take";
  const server = createServer(async (request, response) => {
    requests += 1;
    headers = request.headers;
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    if (how === "hang") return;
    if (how === "refuse") {
      response.writeHead(503).end();
      return;
    }
    const body = Buffer.concat(chunks).toString("utf8");
    if (request.method !== "POST" || request.url !== "/v1/traces") {
      response.writeHead(404).end();
      return;
    }
    bodies.push(body);
    spans.push(...spansOf(JSON.parse(body) as Message));
    response.writeHead(200, { "content-type": "application/json" }).end("{}");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    spans,
    bodies,
    get requests() {
      return requests;
    },
    get headers() {
      return headers;
    },
    behave(next) {
      how = next;
    },
    async stop() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

function spansOf({ resourceSpans }: Message): ReceivedSpan[] {
  return resourceSpans.flatMap(({ resource, scopeSpans }) => {
    const facts = valuesOf(resource.attributes);
    return scopeSpans.flatMap(({ spans }) =>
      spans.map((span) => ({
        traceId: span.traceId,
        spanId: span.spanId,
        parentSpanId: span.parentSpanId ?? "",
        name: span.name,
        kind: span.kind,
        service: facts["service.name"] ?? "",
        instance: facts["service.instance.id"] ?? "",
        startNanos: BigInt(span.startTimeUnixNano),
        endNanos: BigInt(span.endTimeUnixNano),
        attributes: valuesOf(span.attributes ?? []),
        failed: span.status?.code === 2,
      })),
    );
  });
}

function valuesOf(attributes: readonly Attribute[]): Record<string, string> {
  const text = ({ stringValue, intValue, boolValue, doubleValue }: Value) =>
    String(stringValue ?? intValue ?? boolValue ?? doubleValue ?? "");
  return Object.fromEntries(attributes.map(({ key, value }) => [key, text(value)]));
}
