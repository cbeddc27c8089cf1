/**
 * The composition root: builds every area from the store, the clock and each other's ports, and nothing else knows how.
 * A new area is a few lines in `createAreas`.
 */
import type { Clock } from "../kit/clock.ts";
import { within } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import { type Service, ServiceGroup } from "../kit/lifecycle.ts";
import type { Logger } from "../kit/log.ts";
import { HealthState } from "../kit/rpc/health.ts";
import { Pipeline } from "../kit/rpc/pipeline.ts";
import { bindService } from "../kit/rpc/service.ts";
import type { SigningKey } from "../kit/sign/key-file.ts";
import type { Tracing } from "../kit/trace.ts";
import { AdminService } from "../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../proto/gen/tendon/v1/environment_service_pb.js";
import { AdminServiceHandler } from "./admin/service.ts";
import { AgentServiceHandler } from "./agent/service.ts";
import type { ServerConfig } from "./config.ts";
import { EnvironmentServiceHandler } from "./environment/service.ts";
import { createHandArea } from "./hand/area.ts";
import { createHarnessArea } from "./harness/area.ts";
import { mountHttpApi } from "./http/api/http-api.ts";
import { apiRoutes } from "./http/api/routes.ts";
import { InProcessServices } from "./http/api/service-caller.ts";
import { addHealthRoutes } from "./http/health-routes.ts";
import { createMetrics, type ServerMetrics } from "./http/metrics.ts";
import { HttpRouter } from "./http/router.ts";
import { createMcpCalls } from "./mcp/calls.ts";
import { createMemoryArea } from "./memory/area.ts";
import { createPeerArea, type PeerArea } from "./peer/area.ts";
import type { Area } from "./ports/area.ts";
import type { HandControl } from "./ports/hand-control.ts";
import type { SessionTokens } from "./ports/session-tokens.ts";
import { createProxyArea } from "./proxy/area.ts";
import { Authenticator } from "./rpc/authenticate.ts";
import { createInterceptors } from "./rpc/interceptors.ts";
import { CONTRACT_SERVICES } from "./rpc/policy.ts";
import { createRoutes, type Routes } from "./rpc/routes.ts";
import { createSessionTokens } from "./rpc/session-tokens.ts";
import { createSessionArea } from "./session/area.ts";
import type { HintListener } from "./store/events.ts";
import type { Store } from "./store/store.ts";
import { createTunnelArea } from "./tunnel/area.ts";
import { createVaultArea } from "./vault/area.ts";

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

interface AreaDeps extends AppDeps {
  readonly metrics: ServerMetrics;
  readonly sessionTokens: SessionTokens;
  /** A key was revoked here, or without an id many were. */
  readonly forgetKey: (apiKeyId?: string) => void;
}

/** Ports that point back at a later area are closures over it: called only once everything is built. */
function createAreas(deps: AreaDeps): Area[] {
  const { config, store, clock, log, replicaId, defaultWorkspaceId, metrics, sessionTokens } = deps;
  const proxy = createProxyArea({
    ...deps,
    replicas: store.replicas,
    peers: () => peer.peers,
    tunnels: () => tunnel.streams,
  });
  const tunnel = createTunnelArea({
    ...deps,
    ...store,
    proxies: () => proxy.directory,
    agents: () => hand.privateAgents,
    peers: () => peer.peers,
  });
  const peer = createPeerArea({
    ...deps,
    replicas: store.replicas,
    key: deps.peerKey,
    caFile: config.TENDON_CA_FILE,
    clientCertificate: clientCertificate(config),
    sessions: () => session.forPeers,
    hands: () => hand.forPeers,
    proxies: () => proxy.directory,
    tunnels: () => tunnel.streams,
    loseLease: (sessionId, detail) => harness.lose(sessionId, detail),
  });
  const memory = createMemoryArea({ store, defaultWorkspaceId, clock, log });
  const session = createSessionArea({
    ...deps,
    ...store,
    memory: memory.attachments,
    passPreviews: peer.passPreviews,
    isAlone: peer.isAlone,
    dispatch: {
      wake: (sessionId) => harness.dispatch.wake(sessionId),
      async withdraw(sessionId, detail) {
        await harness.dispatch.withdraw(sessionId, detail);
        peer.tell({ case: "leaseWithdrawn", value: { sessionId, detail } });
      },
    },
    hands: {
      releaseSession: async (sessionId) => {
        peer.tell({ case: "sessionEnded", value: { sessionId } });
        await hand.control.releaseSession(sessionId);
        proxy.directory.forgetSession(sessionId);
      },
    },
  });
  const { sessionLog, sessionDirectory } = session;
  const hand = createHandArea({
    ...deps,
    log: sessionLog,
    logger: log,
    peers: peer.peers,
    memory: memory.sync,
    tunnels: () => tunnel.streams,
    timing: { provisionTimeoutMs: config.TENDON_PROVISION_TIMEOUT_MS },
    defaultDriver: config.TENDON_DEFAULT_DRIVER,
  });
  const harness = createHarnessArea({
    leases: store.leases,
    clientCalls: store.clientCalls,
    replicas: store.replicas,
    sessionLog,
    sessions: sessionDirectory,
    hands: hand.control,
    tokens: sessionTokens,
    proxies: proxy.directory,
    replicaId,
    leaseTtlMs: config.TENDON_LEASE_TTL_MS,
    tracing: deps.tracing,
    clock,
    log,
  });
  showHands(metrics, hand);
  const handControl = announcing(hand.control, peer.tell);
  const vault = createVaultArea({
    ...deps,
    ...store,
    proxies: proxy.directory,
    calls: createMcpCalls({ calls: store.mcpCalls, log: sessionLog }),
  });
  const admin = new AdminServiceHandler({ ...deps, trees: session.trees, handControl });
  const environment = new EnvironmentServiceHandler({ environments: store.environments, defaultWorkspaceId });
  return [
    session,
    hand,
    harness,
    memory,
    proxy,
    tunnel,
    vault,
    peer,
    { name: "admin", services: [bindService(AdminService, admin)] },
    {
      name: "agent",
      services: [bindService(AgentService, new AgentServiceHandler({ ...store, defaultWorkspaceId }))],
    },
    { name: "environment", services: [bindService(EnvironmentService, environment)] },
  ];
}

function showHands(metrics: ServerMetrics, hand: ReturnType<typeof createHandArea>): void {
  metrics.gauge(
    "tendon_connected_hand_agents",
    "Hand agents connected to this replica.",
    hand.connectedAgents,
  );
  metrics.gauge("tendon_running_executions", "Executions that this replica follows.", hand.runningExecutions);
}

/** What is disconnected here is so everywhere. */
function announcing(control: HandControl, tell: PeerArea["tell"]): HandControl {
  return {
    ...control,
    async disconnect(handAgentId, detail) {
      tell({ case: "handAgentRevoked", value: { handAgentId, detail } });
      await control.disconnect(handAgentId, detail);
    },
  };
}

/** Where servers demand certificates of their clients, a replica shows its own. */
function clientCertificate(config: ServerConfig) {
  const { TENDON_TLS_CERT: certFile, TENDON_TLS_KEY: keyFile, TENDON_TLS_CLIENT_CA } = config;
  if (TENDON_TLS_CLIENT_CA === undefined || certFile === undefined || keyFile === undefined) return undefined;
  return { certFile, keyFile };
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
