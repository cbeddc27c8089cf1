/** Where spans go: settings of every program that makes some. Off unless an endpoint is named. */
import { type Parser, text, url } from "./settings/parsers.ts";
import { defineSettings, type SettingValues } from "./settings/settings.ts";

export const tracingSettings = defineSettings({
  TENDON_OTLP_ENDPOINT: {
    parse: url(["http", "https"]),
    aliases: ["OTEL_EXPORTER_OTLP_ENDPOINT"],
    help: "Where spans are sent, by OTLP over HTTP with JSON, such as http://127.0.0.1:4318. Not set: none are made.",
  },
  TENDON_OTLP_HEADERS: {
    parse: text({ maxChars: 8192 }),
    secret: true,
    help: "Headers for the receiver of spans: name=value, separated by commas, values percent-encoded.",
  },
  TENDON_TRACE_RATIO: {
    parse: ratio(),
    aliases: ["OTEL_TRACES_SAMPLER_ARG"],
    default: 1,
    help: "Part of the traces that begin here that is recorded, 0 to 1. Callers who say whether theirs is recorded are followed.",
  },
});

export type TracingSettings = SettingValues<typeof tracingSettings>;

/** What an exporter needs; undefined when none is wanted. */
export interface TraceTarget {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly ratio: number;
}

/** Throws an Error that repeats no value. */
export function traceTarget(settings: TracingSettings): TraceTarget | undefined {
  const { TENDON_OTLP_ENDPOINT: endpoint, TENDON_OTLP_HEADERS: headers, TENDON_TRACE_RATIO: part } = settings;
  if (endpoint === undefined) return undefined;
  const base = endpoint.replace(/\/+$/, "");
  const target = base.endsWith("/v1/traces") ? base : `${base}/v1/traces`;
  return { url: target, headers: headersOf(headers ?? ""), ratio: part };
}

function headersOf(list: string): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const pair of list.split(",").filter((one) => one.trim() !== "")) {
    const at = pair.indexOf("=");
    const name = pair.slice(0, at).trim().toLowerCase();
    const value = decoded(pair.slice(at + 1).trim());
    if (
      at < 1 ||
      !/^[a-z0-9!#$%&'*+.^_`|~-]+$/.test(name) ||
      value === undefined ||
      !/^[ -~]*$/.test(value)
    ) {
      throw new Error("TENDON_OTLP_HEADERS must be name=value, separated by commas, values percent-encoded");
    }
    headers[name] = value;
  }
  return headers;
}

function decoded(value: string): string | undefined {
  try {
    return decodeURIComponent(value);
  } catch {
    return undefined;
  }
}

function ratio(): Parser<number> {
  return (value) => {
    const number = Number(value);
    if (value.trim() === "" || !(number >= 0 && number <= 1)) throw new Error("must be a number from 0 to 1");
    return number;
  };
}
