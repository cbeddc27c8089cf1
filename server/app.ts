/** The composition root: the areas (`areas.ts`), mounted on every wire. */
import type { Clock } from "../kit/clock.ts";
import { within } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import { type Service, ServiceGroup } from "../kit/lifecycle.ts";
import type { Logger } from "../kit/log.ts";
import { HealthState } from "../kit/rpc/health.ts";
import { Pipeline } from "../kit/rpc/pipeline.ts";
import type { SigningKey } from "../kit/sign/key-file.ts";
import type { Tracing } from "../kit/trace.ts";
import { createAreas } from "./areas.ts";
import type { ServerConfig } from "./config.ts";
import { mountHttpApi } from "./http/api/http-api.ts";
import { apiRoutes } from "./http/api/routes.ts";
import { InProcessServices } from "./http/api/service-caller.ts";
import { addHealthRoutes } from "./http/health-routes.ts";
import { createMetrics, type ServerMetrics } from "./http/metrics.ts";
import { HttpRouter } from "./http/router.ts";
import type { Area } from "./ports/area.ts";
import { Authenticator } from "./rpc/authenticate.ts";
import { createInterceptors } from "./rpc/interceptors.ts";
import { CONTRACT_SERVICES } from "./rpc/policy.ts";
import type { RateLimit } from "./rpc/rate-limit.ts";
import { createRoutes, type Routes } from "./rpc/routes.ts";
import { createSessionTokens } from "./rpc/session-tokens.ts";
import type { HintListener } from "./store/events.ts";
import type { Store } from "./store/store.ts";

export interface AppDeps {
  readonly config: ServerConfig;
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Logger;
  readonly build: string;
  readonly replicaId: string;
  readonly installationId: string;
  readonly defaultWorkspaceId: string;
  readonly databaseKind: "embedded" | "external";
  /** Hears other replicas' hints. */
  readonly hints: HintListener;
  /** Cuts the connection whose other end this is (`RpcContext.peer`). */
  readonly destroyPeer: (peer: string) => void;
  readonly signingKey: SigningKey;
  /** What this replica shows the others; undefined: it reaches none. */
  readonly peerKey: string | undefined;
  readonly tracing: Tracing;
  /** How often the credential of an open stream is looked at again; the promise is 60 s with the key cache. */
  readonly recheckEveryMs?: number;
  /** False: proxies put no variables in. Default true. See HandDeps.authorities. */
  readonly servesVariables?: boolean;
  /** How long a claim to send webhooks lasts, and so how long those of a server that died wait. Default 60 s. */
  readonly webhookLeaseMs?: number;
}

export interface App {
  readonly routes: Routes;
  readonly metrics: ServerMetrics;
  /** Plain HTTP beside the contract's calls; later parts add to it. */
  readonly router: HttpRouter;
  /** The areas' long-running parts. */
  readonly parts: Service;
  /** Whether `/readyz` and the health service say that calls are taken. */
  setTakesCalls(takesCalls: boolean): void;
  /** Tells every area that the server is about to stop, and waits at most `graceMs`. */
  drain(graceMs: number): Promise<void>;
}

const DEFAULT_RECHECK_MS = 30_000;

export function createApp(deps: AppDeps): App {
  const { clock, log, store } = deps;
  const metrics = createMetrics();
  const sessionTokens = createSessionTokens({ key: deps.signingKey, replicas: store.replicas, clock });
  const recheckEveryMs = deps.recheckEveryMs ?? DEFAULT_RECHECK_MS;
  const authenticateDeps = { ...store, sessionTokens, clock, log, recheckEveryMs };
  const authenticator = new Authenticator(authenticateDeps);
  const forgetKey = (apiKeyId?: string) => authenticator.forget(apiKeyId);
  const areas = createAreas({ ...deps, metrics, sessionTokens, forgetKey });
  const health = new HealthState(CONTRACT_SERVICES.map(({ typeName }) => typeName));
  const router = new HttpRouter(log);
  let takesCalls = false;
  addHealthRoutes(router, { store, metrics, clock, takesCalls: () => takesCalls });
  const services = areas.flatMap((area) => area.services ?? []);
  const interceptors = createInterceptors({
    ...authenticateDeps,
    authenticator,
    observer: metrics.calls,
    tracing: deps.tracing,
    rateLimit: rateLimitOf(deps.config),
  });
  const inProcess = new InProcessServices(services, new Pipeline({ interceptors, log }));
  mountHttpApi(router, { services: inProcess, routes: apiRoutes(clock), clock, log });
  const routes = createRoutes({ services, health, fallback: router.handle, interceptors, log, clock });
  return {
    routes,
    metrics,
    router,
    parts: new ServiceGroup(
      "areas",
      areas.flatMap(({ parts = [] }) => parts),
    ),
    setTakesCalls(value) {
      takesCalls = value;
      health.set(value);
    },
    drain: (graceMs) => drainAreas(areas, graceMs, clock, log),
  };
}

function rateLimitOf(config: ServerConfig): RateLimit {
  return { perMinute: config.TENDON_RATE_LIMIT_PER_MINUTE, burst: config.TENDON_RATE_LIMIT_BURST };
}

async function drainAreas(areas: readonly Area[], graceMs: number, clock: Clock, log: Logger): Promise<void> {
  const draining = areas.map(async ({ name, drain }) => {
    try {
      await drain?.(graceMs);
    } catch (error) {
      log.warn({ area: name, error: messageOf(error) }, "an area did not drain cleanly");
    }
  });
  await within(clock, graceMs, Promise.all(draining), () => new Error("grace is over")).catch(() => {});
}
