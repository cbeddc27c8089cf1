import { describe, expect, test } from "vitest";
import { formatTraceParent, NO_TRACING, parseTraceParent, traceHeaders, traceOfEvent } from "./trace.ts";
import { traceTarget } from "./trace-settings.ts";

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN = "00f067aa0ba902b7";

describe("the W3C traceparent", () => {
  test("is read and written as the standard has it, with its flag", () => {
    const text = `00-${TRACE}-${SPAN}-01`;
    expect(parseTraceParent(text)).toEqual({ traceId: TRACE, spanId: SPAN, sampled: true });
    expect(formatTraceParent(parseTraceParent(text)!)).toBe(text);
    expect(parseTraceParent(`00-${TRACE}-${SPAN}-00`)?.sampled).toBe(false);
    expect(traceHeaders(parseTraceParent(text))).toEqual({ traceparent: text });
    expect(traceHeaders(undefined)).toEqual({});
  });

  test("of a later version may have more at its end, of this one not", () => {
    expect(parseTraceParent(`01-${TRACE}-${SPAN}-03-what`)?.sampled).toBe(true);
    expect(parseTraceParent(`00-${TRACE}-${SPAN}-01-what`)).toBeUndefined();
  });

  test.each([
    ["nothing", undefined],
    ["an empty text", ""],
    ["the forbidden version", `ff-${TRACE}-${SPAN}-01`],
    ["no trace", `00-${"0".repeat(32)}-${SPAN}-01`],
    ["no span", `00-${TRACE}-${"0".repeat(16)}-01`],
    ["capitals", `00-${TRACE.toUpperCase()}-${SPAN}-01`],
    ["a short one", `00-${TRACE.slice(1)}-${SPAN}-01`],
    ["a very long one", `01-${TRACE}-${SPAN}-01-${"x".repeat(600)}`],
  ])("that is %s counts as none", (_what, text) => {
    expect(parseTraceParent(text)).toBeUndefined();
  });
});

test("what began with an event that came without a trace has the same trace wherever it is computed", () => {
  const trace = traceOfEvent("sevt_1");
  expect(trace).toEqual(traceOfEvent("sevt_1"));
  expect(parseTraceParent(formatTraceParent(trace))).toEqual(trace);
  expect(traceOfEvent("sevt_2").traceId).not.toBe(trace.traceId);
});

test("where nobody records, the caller's context is passed on", () => {
  const parent = traceOfEvent("sevt_1");
  expect(NO_TRACING.start("x", { parent }).context).toBe(parent);
  expect(NO_TRACING.start("x", { parent: undefined }).context).toBeUndefined();
});

describe("where spans go", () => {
  const target = (endpoint?: string, headers?: string) =>
    traceTarget({ TENDON_OTLP_ENDPOINT: endpoint, TENDON_OTLP_HEADERS: headers, TENDON_TRACE_RATIO: 1 });

  test("is nowhere unless an endpoint is named", () => {
    expect(target()).toBeUndefined();
  });

  test("is the endpoint with the standard's path, unless it has that already", () => {
    expect(target("http://h:4318")?.url).toBe("http://h:4318/v1/traces");
    expect(target("http://h:4318/otlp/")?.url).toBe("http://h:4318/otlp/v1/traces");
    expect(target("http://h:4318/v1/traces")?.url).toBe("http://h:4318/v1/traces");
  });

  test("takes headers as the standard has them, and repeats no bad one", () => {
    expect(target("http://h", "Authorization=Bearer%20x, b=1")?.headers).toEqual({
      authorization: "Bearer x",
      b: "1",
    });
    for (const bad of ["secret-value", "=secret-value", "a=%zzsecret-value", "a=secret-value%0A"]) {
      expect(() => target("http://h", bad)).toThrow("must be name=value");
      expect(() => target("http://h", bad)).not.toThrow(/secret-value/);
    }
  });
});
