/** Spans with OpenTelemetry's SDK, which is loaded only where somebody wants them. Not for the hand agent, which stays light. */
import { BUILD } from "./build.ts";
import { messageOf } from "./errors.ts";
import type { Logger } from "./log.ts";
import { EXPORT_LIMITS, NO_TRACING, type Tracing } from "./trace.ts";
import { type TracingSettings, traceTarget } from "./trace-settings.ts";
import { spansOf } from "./trace-spans.ts";

/** `service`: what receivers know the program by. Throws an Error for headers that are none. A receiver that is away is told to the log, and stops nothing. */
export async function openTracing(
  service: { readonly name: string; readonly instanceId: string },
  settings: TracingSettings,
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
      "service.name": service.name,
      "service.version": BUILD,
      "service.instance.id": service.instanceId,
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
