/** What programs do with spans when the receiver is well, away, slow or says no: the SDK's exporter and the hand agent's own. */
import { afterEach, describe, expect, test } from "vitest";
import * as agent from "../../hand-agent/tracing.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { EXPORT_LIMITS, parseTraceParent, type Tracing, traceOfEvent } from "../../kit/trace.ts";
import { openTracing } from "../../kit/trace-sdk.ts";
import type { TracingSettings } from "../../kit/trace-settings.ts";
import { eventually } from "../kit/eventually.ts";
import { freePort } from "../kit/free-port.ts";
import { promised } from "../kit/promised.ts";
import { type SpanReceiver, startSpanReceiver } from "../kit/span-receiver.ts";

const log = createLogger("test", "silent");
const PARENT = { ...traceOfEvent("sevt_1"), sampled: true };
/** Sent twice: at once when it stops, and before that by its timer. */
const STOPS_WITHIN_MS = 2 * EXPORT_LIMITS.exportTimeoutMillis + 1_000;

const OPENERS: readonly [string, (settings: TracingSettings) => Tracing | Promise<Tracing>][] = [
  ["server", (settings) => openTracing({ name: "tendon-server", instanceId: "rplc_1" }, settings, log)],
  ["harness", (settings) => openTracing({ name: "tendon-harness", instanceId: "hrns_1" }, settings, log)],
  [
    "hand agent",
    (settings) => agent.openTracing(settings, { instanceId: "hagt_1", clock: systemClock, log }),
  ],
];

let receiver: SpanReceiver | undefined;
afterEach(async () => {
  await receiver?.stop();
  receiver = undefined;
});

function settings(url: string | undefined): TracingSettings {
  return { TENDON_OTLP_ENDPOINT: url, TENDON_OTLP_HEADERS: "x-team=a%20b", TENDON_TRACE_RATIO: 1 };
}

describe.each(OPENERS)("spans of the %s", (name, open) => {
  test("are not made unless a receiver is named, and contexts are passed on all the same", async () => {
    const tracing = await open({ ...settings(undefined), TENDON_OTLP_HEADERS: undefined });
    expect(tracing.isOn).toBe(false);
    expect(tracing.start("x", { parent: PARENT }).context).toBe(PARENT);
  });

  test("come with what they were given, their failure and their resource", async () => {
    receiver = await startSpanReceiver();
    const tracing = await open(settings(receiver.url));
    const outer = tracing.start("outer", { parent: PARENT, kind: "server", attributes: { a: "b", n: 7 } });
    const inner = tracing.start("inner", { parent: outer.context });
    inner.set({ more: true });
    inner.end({ part: "sandbox", reason: "TOOL_FAILED" });
    inner.end();
    outer.end();
    await tracing.stop();
    const service = `tendon-${name.replace(" ", "-")}`;
    expect(receiver.headers["x-team"]).toBe("a b");
    expect(receiver.spans).toMatchObject([
      {
        name: "inner",
        service,
        traceId: PARENT.traceId,
        parentSpanId: outer.context?.spanId,
        failed: true,
        attributes: {
          more: "true",
          "error.type": "TOOL_FAILED",
          "tendon.failure.part": "sandbox",
          "tendon.failure.reason": "TOOL_FAILED",
        },
      },
      {
        name: "outer",
        service,
        kind: 2,
        parentSpanId: PARENT.spanId,
        failed: false,
        attributes: { a: "b", n: "7" },
      },
    ]);
    expect(parseTraceParent(`00-${outer.context?.traceId}-${outer.context?.spanId}-01`)).toBeDefined();
  });

  test("are not made for a caller who does not record", async () => {
    receiver = await startSpanReceiver();
    const tracing = await open(settings(receiver.url));
    const span = tracing.start("x", { parent: { ...PARENT, sampled: false } });
    span.end();
    await tracing.stop();
    expect(span.context).toMatchObject({ traceId: PARENT.traceId, sampled: false });
    expect(receiver.requests).toBe(0);
  });
});

// The server's are made as the harness's are.
describe.each(OPENERS.slice(1))("spans of the %s", (_name, open) => {
  test.each(["away", "hang"] as const)(
    "cost bounded memory and nobody's time when the receiver is or does: %s",
    async (how) => {
      receiver = await startSpanReceiver();
      if (how === "hang") receiver.behave(how);
      const url = how === "away" ? `http://127.0.0.1:${await freePort()}` : receiver.url;
      const tracing = await open(settings(url));
      const count = 10 * EXPORT_LIMITS.maxQueueSize;
      const startedMs = systemClock.monotonicMs();
      for (let n = 0; n < count; n++) tracing.start("x", { parent: PARENT, attributes: { n } }).end();
      const eachMs = (systemClock.monotonicMs() - startedMs) / count;
      // A span of a busy machine's worst moment; what it usually takes is some microseconds.
      expect(eachMs).toBeLessThan(1);
      const stoppedMs = systemClock.monotonicMs();
      await tracing.stop();
      expect(systemClock.monotonicMs() - stoppedMs).toBeLessThan(promised(STOPS_WITHIN_MS));
    },
  );

  test("that came while a receiver was away are at most what may wait, and later ones arrive again", async () => {
    receiver = await startSpanReceiver();
    receiver.behave("refuse");
    const tracing = await open(settings(receiver.url));
    for (let n = 0; n < 3 * EXPORT_LIMITS.maxQueueSize; n++) tracing.start("early", { parent: PARENT }).end();
    await eventually(() => (receiver?.requests ?? 0) > 0);
    receiver.behave("take");
    await eventually(
      () => {
        tracing.start("later", { parent: PARENT }).end();
        return receiver?.spans.some((span) => span.name === "later");
      },
      { withinMs: 60_000, everyMs: 100 },
    );
    await tracing.stop();
    const early = receiver.spans.filter((span) => span.name === "early");
    expect(early.length).toBeLessThanOrEqual(EXPORT_LIMITS.maxQueueSize + EXPORT_LIMITS.maxExportBatchSize);
  });
});
