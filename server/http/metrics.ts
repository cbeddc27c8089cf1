/** Prometheus metrics of this process. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";
import type { Metrics } from "../ports/metrics.ts";
import type { CallObserver } from "../rpc/interceptors.ts";

/** From a unary call that hits memory to a watch that is open for an hour. */
const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600];

export interface ServerMetrics extends Metrics {
  readonly calls: CallObserver;
  readonly contentType: string;
  render(): Promise<string>;
  /** Values of one gauge, by label. */
  gauges(name: string, help: string, label: string, read: () => Readonly<Record<string, number>>): void;
}

export function createMetrics(): ServerMetrics {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry });
  const gauge: Metrics["gauge"] = (name, help, read) => {
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(read());
      },
    });
  };
  return {
    calls: callMetrics(registers),
    contentType: registry.contentType,
    render: () => registry.metrics(),
    gauge,
    gauges(name, help, label, read) {
      new Gauge({
        name,
        help,
        registers,
        labelNames: [label],
        collect() {
          for (const [value, amount] of Object.entries(read())) this.set({ [label]: value }, amount);
        },
      });
    },
    counter(name, help) {
      const counter = new Counter({ name, help, registers });
      return (by = 1) => counter.inc(by);
    },
  };
}

function callMetrics(registers: Registry[]): CallObserver {
  const seconds = new Histogram({
    name: "tendon_rpc_seconds",
    help: "How long calls took, by method and gRPC code; its count is the number of calls that ended.",
    labelNames: ["method", "code"],
    buckets: SECONDS,
    registers,
  });
  const open = new Gauge({
    name: "tendon_rpc_open_calls",
    help: "Calls that are open, by method.",
    labelNames: ["method"],
    registers,
  });
  return {
    began: (method) => open.inc({ method }),
    ended(method, code, took) {
      open.dec({ method });
      seconds.observe({ method, code }, took);
    },
  };
}
