import { bindService } from "../kit/rpc/service.ts";
import { AdminService } from "../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../proto/gen/tendon/v1/environment_service_pb.js";
import { AdminServiceHandler } from "./admin/service.ts";
import { createAgentRules } from "./agent/agent-rules.ts";
import { AgentServiceHandler } from "./agent/service.ts";
import type { AppDeps } from "./app.ts";
import type { ServerConfig } from "./config.ts";
import { createDeploymentArea } from "./deployment/area.ts";
import { EnvironmentServiceHandler } from "./environment/service.ts";
import { createFileArea } from "./file/area.ts";
import { createHandArea, type HandArea } from "./hand/area.ts";
import { SandboxAuthorities } from "./hand/sandbox-authorities.ts";
import { createHarnessArea } from "./harness/area.ts";
import type { ServerMetrics } from "./http/metrics.ts";
import { createMcpCalls } from "./mcp/calls.ts";
import { createMemoryArea } from "./memory/area.ts";
import { createPeerArea, type PeerArea } from "./peer/area.ts";
import type { Area } from "./ports/area.ts";
import type { HandControl } from "./ports/hand-control.ts";
import type { HarnessDispatch } from "./ports/harness-dispatch.ts";
import type { ProxyDirectory } from "./ports/proxy-directory.ts";
import type { SessionLog } from "./ports/session-log.ts";
import type { SessionTokens } from "./ports/session-tokens.ts";
import { createProxyArea } from "./proxy/area.ts";
import type { SessionArea } from "./session/area.ts";
import { createSessionArea } from "./session/area.ts";
import { createSkillArea, type SkillArea } from "./skill/area.ts";
import { createTunnelArea } from "./tunnel/area.ts";
import { createVaultArea, type VaultArea } from "./vault/area.ts";
import { createWebCalls } from "./web/calls.ts";
import { createWebhookArea } from "./webhook/area.ts";
import { createWorkArea, type WorkArea } from "./work/area.ts";

export interface AreaDeps extends AppDeps {
  readonly metrics: ServerMetrics;
  readonly sessionTokens: SessionTokens;
  /** A key was revoked here, or without an id many were. */
  readonly forgetKey: (apiKeyId?: string) => void;
}

/** Ports that point back at a later area are closures over it: called only once everything is built. */
export function createAreas(deps: AreaDeps): Area[] {
  const { config, store, log, metrics, sessionTokens } = deps;
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
  const { memory, file, skill, forSessions } = createKept(deps);
  const dispatch = announcingDispatch(() => harness.dispatch, peer.tell);
  const session = createSessionArea({
    ...deps,
    ...store,
    agentRules: createAgentRules(store.agents, skill.ofAgents),
    ...forSessions,
    sealing: { seal: (whose, use, secret) => vault.sealing.seal(whose, use, secret) },
    filesChanged: (sessionId) => hand.files.uploadsChanged(sessionId),
    passPreviews: peer.passPreviews,
    isAlone: peer.isAlone,
    dispatch,
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
    authorities: authoritiesOf(deps, () => proxy.directory),
    workQueue: () => work.queue,
    timing: { provisionTimeoutMs: config.TENDON_PROVISION_TIMEOUT_MS },
    defaultDriver: config.TENDON_DEFAULT_DRIVER,
    defaultImage: config.TENDON_DEFAULT_IMAGE,
  });
  const work = createWork(deps, sessionLog);
  const harness = createHarnessArea({
    ...deps,
    ...store,
    sessionLog,
    sessions: sessionDirectory,
    hands: hand.control,
    tokens: sessionTokens,
    proxies: proxy.directory,
    leaseTtlMs: config.TENDON_LEASE_TTL_MS,
  });
  showHands(metrics, hand);
  tellOfRest(session, hand);
  const vault = createVault(deps, proxy.directory, sessionLog);
  const definitions = createDefinitions(deps, session, skill, announcing(hand.control, peer.tell));
  const others = [memory, file, skill, ...createSending(deps, proxy)];
  return [session, hand, harness, work, ...others, tunnel, vault, peer, ...definitions];
}

/** Webhooks, and the proxies that send them: what these are sending has an end before they are told to go, so that nothing is sent twice. */
function createSending(deps: AreaDeps, proxy: Area & { readonly directory: ProxyDirectory }): Area[] {
  const { config, store, webhookLeaseMs: leaseMs } = deps;
  const proxies = proxy.directory;
  const webhook = createWebhookArea({
    ...deps,
    ...store,
    proxies,
    eventsKept: config.TENDON_WEBHOOK_EVENTS_KEPT,
    ...(leaseMs !== undefined && { leaseMs }),
  });
  const drain = async (graceMs: number) => {
    await webhook.rest(graceMs / 2);
    await proxy.drain?.(graceMs / 2);
  };
  return [webhook, { ...proxy, drain }];
}

/** What outlives sessions and is given to them. */
function createKept({ store, defaultWorkspaceId, clock, log }: AreaDeps) {
  const memory = createMemoryArea({ store, defaultWorkspaceId, clock, log });
  const file = createFileArea({ store, defaultWorkspaceId, clock, log });
  const skill = createSkillArea({ store, defaultWorkspaceId });
  const forSessions = { memory: memory.attachments, files: file.attachments, skills: skill.ofAgents };
  return { memory, file, skill, forSessions };
}

/** A lease that is withdrawn here is so everywhere. */
function announcingDispatch(dispatch: () => HarnessDispatch, tell: PeerArea["tell"]): HarnessDispatch {
  return {
    wake: (sessionId) => dispatch().wake(sessionId),
    async withdraw(sessionId, detail) {
      await dispatch().withdraw(sessionId, detail);
      tell({ case: "leaseWithdrawn", value: { sessionId, detail } });
    },
  };
}

function authoritiesOf({ servesVariables = true, clock }: AreaDeps, proxies: () => ProxyDirectory) {
  return servesVariables ? new SandboxAuthorities({ proxies, clock }) : undefined;
}

function createVault(deps: AreaDeps, proxies: ProxyDirectory, sessionLog: SessionLog): VaultArea {
  const { store } = deps;
  const calls = createMcpCalls({ calls: store.mcpCalls, credentials: store.credentials, log: sessionLog });
  const { mcpCalls, shownTexts } = store;
  const web = createWebCalls({ calls: mcpCalls, shownTexts, log: sessionLog });
  return createVaultArea({ ...deps, ...store, proxies, calls: { ...calls, ...web } });
}

function createWork({ config, ...deps }: AreaDeps, sessionLog: SessionLog): WorkArea {
  const { store } = deps;
  const leaseTtlMs = config.TENDON_WORK_LEASE_TTL_SECONDS * 1_000;
  return createWorkArea({
    ...deps,
    work: store.work,
    environments: store.environments,
    sessionLog,
    leaseTtlMs,
  });
}

/** What is kept and told; of it only deployments do something by themselves. */
function createDefinitions(
  deps: AreaDeps,
  { trees, creation }: SessionArea,
  { ofAgents: skills }: SkillArea,
  handControl: HandControl,
): Area[] {
  const { store, defaultWorkspaceId } = deps;
  const admin = new AdminServiceHandler({ ...deps, trees, handControl });
  const agent = new AgentServiceHandler({ ...store, skills, defaultWorkspaceId });
  const environment = new EnvironmentServiceHandler({ ...store, defaultWorkspaceId });
  return [
    { name: "admin", services: [bindService(AdminService, admin)] },
    { name: "agent", services: [bindService(AgentService, agent)] },
    { name: "environment", services: [bindService(EnvironmentService, environment)] },
    createDeploymentArea({ ...deps, ...store, creation }),
  ];
}

/** By the replica that has written it: what a lost server did not hear of is found by the hands' sweeper. */
function tellOfRest({ sessionLog }: SessionArea, { files }: HandArea): void {
  sessionLog.onAdvance(({ sessionId, byLease, events }) => {
    if (byLease === undefined) return;
    if (events?.().some(({ type, threadId }) => type === "session.status_idle" && threadId === ""))
      files.rested(sessionId);
  });
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
