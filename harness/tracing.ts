/** Spans of the harness, with OpenTelemetry's SDK: loaded only where somebody wants them. */
import { BUILD } from "../kit/build.ts";
import { messageOf } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import { EXPORT_LIMITS, NO_TRACING, type Tracing } from "../kit/trace.ts";
import { type TracingSettings, traceTarget } from "../kit/trace-settings.ts";
import { spansOf } from "../kit/trace-spans.ts";

/** Throws an Error for headers that are none. A receiver that is away is told to the log, and stops nothing. */
export async function openTracing(
  settings: TracingSettings,
  instanceId: string,
  log: Logger,
): Promise<Tracing> {
  const target = traceTarget(settings);
  if (target === undefined) return NO_TRACING;
  const [sdk, { OTLPTraceExporter }, { resourceFromAttributes }] = await Promise.all([
    import("@opentelemetry/sdk-trace"),
    import("@opentelemetry/exporter-trace-otlp-http"),
    import("@opentelemetry/resources"),
  ]);
  const { timeoutMs, ...limits } = EXPORT_LIMITS;
  const exporter = new OTLPTraceExporter({
    url: target.url,
    headers: { ...target.headers },
    timeoutMillis: timeoutMs,
  });
  const provider = new sdk.TracerProvider({
    resource: resourceFromAttributes({
      "service.name": "tendon-harness",
      "service.version": BUILD,
      "service.instance.id": instanceId,
    }),
    sampler: new sdk.ParentBasedSampler({ root: new sdk.TraceIdRatioBasedSampler(target.ratio) }),
    spanProcessors: [new sdk.BatchSpanProcessor({ exporter, ...limits })],
  });
  log.info({ url: new URL(target.url).origin }, "spans are sent");
  const stop = () =>
    provider
      .shutdown()
      .catch((error) => log.warn({ error: messageOf(error) }, "the last spans were not sent"));
  return spansOf(provider.getTracer("tendon", BUILD), stop);
}
