/** `/healthz`: can the platform run a session? `/readyz`: does this server take calls? `/metrics`: figures of this process. */
import { type Clock, within } from "../../kit/clock.ts";
import { messageOf, TendonError } from "../../kit/errors.ts";
import { missingParts } from "../ports/readiness.ts";
import type { Store } from "../store/store.ts";
import type { ServerMetrics } from "./metrics.ts";
import { type HttpRouter, sendJson } from "./router.ts";

export interface HealthRoutesDeps {
  readonly store: Pick<Store, "ping" | "replicas">;
  readonly metrics: ServerMetrics;
  readonly clock: Clock;
  /** False before the server has started and while it stops. */
  takesCalls(): boolean;
}

const DATABASE_WITHIN_MS = 3_000;

export function addHealthRoutes(router: HttpRouter, deps: HealthRoutesDeps): void {
  const { store, metrics, clock } = deps;
  const asked = <T>(answer: Promise<T>) =>
    within(clock, DATABASE_WITHIN_MS, answer, () => new Error("the database does not answer in time"));

  router.get("/healthz", async (exchange) => {
    const missing = deps.takesCalls() ? [] : ["this server is starting or stopping"];
    try {
      missing.push(...missingParts(await asked(store.replicas.presence(undefined))));
    } catch (error) {
      missing.push(problemOf(error));
    }
    const healthy = missing.length === 0;
    sendJson(exchange, healthy ? 200 : 503, { status: healthy ? "ok" : "unavailable", missing });
  });

  router.get("/readyz", async (exchange) => {
    const missing = deps.takesCalls() ? [] : ["this server is starting or stopping"];
    await asked(store.ping()).catch((error: unknown) => missing.push(problemOf(error)));
    const ready = missing.length === 0;
    sendJson(exchange, ready ? 200 : 503, { status: ready ? "ok" : "unavailable", missing });
  });

  router.get("/metrics", async ({ response }) => {
    const text = await metrics.render();
    response.writeHead(200, { "content-type": metrics.contentType }).end(text);
  });
}

/** Only our own words reach a caller without a credential. */
function problemOf(error: unknown): string {
  return error instanceof TendonError ? messageOf(error) : "the database does not answer";
}
