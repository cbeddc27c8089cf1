/**
 * Spans of the hand agent, sent as OTLP over HTTP with JSON. Written here because the agent is one light file: OpenTelemetry's
 * SDK and exporter would add half as much again to it. It begins no traces: what nobody asked to record is passed on.
 *
 * A receiver that is away costs memory for `maxQueueSize` spans and nothing else; what comes beyond is dropped and counted.
 */
import { randomBytes } from "node:crypto";
import { request as httpRequest } from "node:http";
import { request as httpsRequest } from "node:https";
import { BUILD } from "../kit/build.ts";
import type { Clock } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import {
  EXPORT_LIMITS,
  failureAttributes,
  NO_TRACING,
  type Span,
  type SpanAttributes,
  type SpanKind,
  type SpanOptions,
  type TraceContext,
  type Tracing,
} from "../kit/trace.ts";
import { type TracingSettings, traceTarget } from "../kit/trace-settings.ts";

const KINDS: Readonly<Record<SpanKind, number>> = { internal: 1, server: 2, client: 3 };
const STATUS_ERROR = 2;

export interface SpanSenderOptions {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly instanceId: string;
  readonly clock: Clock;
  readonly log: Logger;
}

/** Throws an Error for headers that are none. */
export function openTracing(
  settings: TracingSettings,
  options: Omit<SpanSenderOptions, "url" | "headers">,
): Tracing {
  const target = traceTarget(settings);
  return target === undefined ? NO_TRACING : new SpanSender({ ...options, ...target });
}

export class SpanSender implements Tracing {
  readonly isOn = true;
  private readonly options: SpanSenderOptions;
  private readonly stopTimer: () => void;
  private queue: object[] = [];
  private dropped = 0;
  private sending: Promise<void> | undefined;

  constructor(options: SpanSenderOptions) {
    this.options = options;
    this.stopTimer = options.clock.every(EXPORT_LIMITS.scheduledDelayMillis, () => this.send());
  }

  start(name: string, options: SpanOptions): Span {
    const { parent } = options;
    if (parent === undefined || !parent.sampled) return NO_TRACING.start(name, options);
    const { clock } = this.options;
    const context: TraceContext = { ...parent, spanId: randomBytes(8).toString("hex") };
    const attributes: Record<string, string | number | boolean> = { ...options.attributes };
    const startMs = clock.nowMs();
    const startedMs = clock.monotonicMs();
    let isOver = false;
    return {
      context,
      set: (more) => void Object.assign(attributes, more),
      end: (failure) => {
        if (isOver) return;
        isOver = true;
        if (failure !== undefined) Object.assign(attributes, failureAttributes(failure));
        this.add({
          traceId: context.traceId,
          spanId: context.spanId,
          parentSpanId: parent.spanId,
          name,
          kind: KINDS[options.kind ?? "internal"],
          startTimeUnixNano: nanos(startMs),
          endTimeUnixNano: nanos(startMs + clock.monotonicMs() - startedMs),
          attributes: attributeList(attributes),
          ...(failure && { status: { code: STATUS_ERROR, message: failure.reason } }),
        });
      },
    };
  }

  async stop(): Promise<void> {
    this.stopTimer();
    await this.sending;
    this.send();
    await this.sending;
  }

  private add(span: object): void {
    if (this.queue.length >= EXPORT_LIMITS.maxQueueSize) this.dropped += 1;
    else this.queue.push(span);
  }

  /** One batch at a time. One that a receiver does not take is lost: it may have had it. */
  private send(): void {
    if (this.sending !== undefined || this.queue.length === 0) return;
    const batch = this.queue.splice(0, EXPORT_LIMITS.maxExportBatchSize);
    this.sending = this.post(JSON.stringify(this.message(batch)))
      .catch((error) => {
        this.dropped += batch.length;
        this.options.log.debug({ error: messageOf(error), dropped: this.dropped }, "spans were not taken");
      })
      .finally(() => {
        this.sending = undefined;
      });
  }

  private message(spans: readonly object[]): object {
    const resource = {
      "service.name": "tendon-hand-agent",
      "service.version": BUILD,
      "service.instance.id": this.options.instanceId,
    };
    const scope = { name: "tendon", version: BUILD };
    return {
      resourceSpans: [{ resource: { attributes: attributeList(resource) }, scopeSpans: [{ scope, spans }] }],
    };
  }

  private post(body: string): Promise<void> {
    const { url, headers, clock } = this.options;
    const request = url.startsWith("https:") ? httpsRequest : httpRequest;
    return new Promise((resolve, reject) => {
      const call = request(url, {
        method: "POST",
        headers: {
          ...headers,
          "content-type": "application/json",
          "content-length": Buffer.byteLength(body),
        },
      });
      const stopTimer = clock.after(EXPORT_LIMITS.timeoutMs, () =>
        call.destroy(new Error("it did not answer")),
      );
      call.on("error", reject);
      call.on("close", stopTimer);
      call.on("response", (response) => {
        response.resume();
        const { statusCode = 0 } = response;
        if (statusCode >= 200 && statusCode < 300) resolve();
        else reject(new Error(`the receiver answered ${statusCode}`));
      });
      call.end(body);
    });
  }
}

function attributeList(attributes: SpanAttributes): object[] {
  return Object.entries(attributes).map(([key, value]) => ({ key, value: attributeValue(value) }));
}

function attributeValue(value: string | number | boolean): object {
  if (typeof value === "string") return { stringValue: value };
  if (typeof value === "boolean") return { boolValue: value };
  return Number.isSafeInteger(value) ? { intValue: String(value) } : { doubleValue: value };
}

function nanos(ms: number): string {
  return String(BigInt(Math.round(ms * 1_000)) * 1_000n);
}
