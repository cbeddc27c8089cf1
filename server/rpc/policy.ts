/**
 * Who may call what: a row per method of every service of the contract, also of those that are not built yet. A method
 * without a row is refused, and a server that mounts one does not start. Agrees with the `Callers:` line of each RPC.
 */
import type { DescMethod, DescService } from "@bufbuild/protobuf";
import { TendonError } from "../../kit/errors.ts";
import { methodPath } from "../../kit/rpc/service.ts";
import { Health } from "../../proto/gen/grpc/health/v1/health_pb.js";
import { ServerReflection } from "../../proto/gen/grpc/reflection/v1/reflection_pb.js";
import { ServerReflection as ServerReflectionAlpha } from "../../proto/gen/grpc/reflection/v1alpha/reflection_pb.js";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { DeploymentService } from "../../proto/gen/tendon/v1/deployment_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { FileService } from "../../proto/gen/tendon/v1/file_service_pb.js";
import { HandAgentService } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { HarnessService } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { MemoryService } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { PeerService } from "../../proto/gen/tendon/v1/peer_service_pb.js";
import { ProxyService } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import { SessionResourceService } from "../../proto/gen/tendon/v1/session_resource_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { SkillService } from "../../proto/gen/tendon/v1/skill_service_pb.js";
import { ThreadService } from "../../proto/gen/tendon/v1/thread_service_pb.js";
import { VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { WebhookService } from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import { WorkService } from "../../proto/gen/tendon/v1/work_service_pb.js";
import type { PrincipalKind } from "../ports/principal.ts";

/** The columns of the table. */
export const PRINCIPAL_KINDS = [
  "admin",
  "client",
  "harness",
  "proxy",
  "hand_agent",
  "worker",
  "session",
  "work_item",
  "peer",
  "anonymous",
] as const satisfies readonly PrincipalKind[];

type Callers = readonly PrincipalKind[];

/** Open methods never look at a credential: they answer without the database, and also to someone with a stale key. */
const ANYONE: Callers = PRINCIPAL_KINDS;
const ADMIN: Callers = ["admin"];
const CLIENT: Callers = ["client", "admin"];
const BRAIN: Callers = ["client", "admin", "harness"];
const LOG: Callers = ["client", "admin", "harness", "worker", "session", "work_item"];
const MEMORY: Callers = ["client", "admin", "harness", "session", "work_item"];
const MEMORY_HISTORY: Callers = ["client", "admin", "harness", "session"];
const WORKER: Callers = ["worker"];
const HOLDER: Callers = ["worker", "work_item"];
const HARNESS: Callers = ["harness"];
const PROXY: Callers = ["proxy"];
const HAND_AGENT: Callers = ["hand_agent"];
const PEER: Callers = ["peer"];

const POLICY = new Map<string, Callers>([
  ...rows(AdminService, {
    getStatus: CLIENT,
    createWorkspace: ADMIN,
    getWorkspace: ADMIN,
    listWorkspaces: ADMIN,
    updateWorkspace: ADMIN,
    archiveWorkspace: ADMIN,
    createApiKey: ADMIN,
    listApiKeys: ADMIN,
    revokeApiKey: ADMIN,
    createJoinToken: ADMIN,
    listJoinTokens: ADMIN,
    revokeJoinToken: ADMIN,
    revokeHandAgent: ADMIN,
    listAuditEntries: ADMIN,
    getWorkspaceUsage: ADMIN,
    stopSessions: CLIENT,
  }),
  ...rows(AgentService, {
    createAgent: CLIENT,
    getAgent: CLIENT,
    listAgents: CLIENT,
    listAgentVersions: CLIENT,
    updateAgent: CLIENT,
    archiveAgent: CLIENT,
  }),
  ...rows(CredentialService, {
    resolveCredential: PROXY,
    storeRefreshed: PROXY,
    claimRefresh: PROXY,
    endRefresh: PROXY,
    recordUses: PROXY,
    resolveMcpServer: PROXY,
    beginCall: PROXY,
    finishCall: PROXY,
    beginWebCall: PROXY,
    finishWebCall: PROXY,
    finishLargeWebCall: PROXY,
  }),
  ...rows(DeploymentService, {
    createDeployment: CLIENT,
    getDeployment: CLIENT,
    listDeployments: CLIENT,
    updateDeployment: CLIENT,
    archiveDeployment: CLIENT,
    pauseDeployment: CLIENT,
    unpauseDeployment: CLIENT,
    runDeployment: CLIENT,
    getDeploymentRun: CLIENT,
    listDeploymentRuns: CLIENT,
  }),
  ...rows(EnvironmentService, {
    createEnvironment: CLIENT,
    getEnvironment: CLIENT,
    listEnvironments: CLIENT,
    updateEnvironment: CLIENT,
    archiveEnvironment: CLIENT,
    deleteEnvironment: CLIENT,
    createEnvironmentKey: CLIENT,
    listEnvironmentKeys: CLIENT,
    revokeEnvironmentKey: CLIENT,
  }),
  ...rows(FileService, {
    uploadFile: CLIENT,
    getFile: CLIENT,
    listFiles: CLIENT,
    readFile: CLIENT,
    deleteFile: CLIENT,
  }),
  ...rows(HandAgentService, {
    enroll: ANYONE,
    connect: HAND_AGENT,
    streamExecution: HAND_AGENT,
    streamTransfer: HAND_AGENT,
    readResource: HAND_AGENT,
    syncMemory: HAND_AGENT,
    readSessionLog: HAND_AGENT,
    listHandFiles: HAND_AGENT,
    readHandFile: HAND_AGENT,
    offerOutputs: HAND_AGENT,
    storeOutput: HAND_AGENT,
    streamTunnel: HAND_AGENT,
  }),
  ...rows(HandService, {
    provision: BRAIN,
    execute: BRAIN,
    cancelExecution: BRAIN,
    getHand: BRAIN,
    listHands: BRAIN,
    listHandAgents: CLIENT,
    releaseHand: BRAIN,
    handOver: BRAIN,
    copyIn: BRAIN,
    copyOut: BRAIN,
  }),
  ...rows(HarnessService, { work: HARNESS }),
  ...rows(MemoryService, {
    createMemoryStore: CLIENT,
    getMemoryStore: CLIENT,
    listMemoryStores: CLIENT,
    updateMemoryStore: CLIENT,
    archiveMemoryStore: CLIENT,
    deleteMemoryStore: CLIENT,
    createMemory: MEMORY,
    getMemory: MEMORY,
    listMemories: MEMORY,
    updateMemory: MEMORY,
    deleteMemory: MEMORY,
    getMemoryVersion: MEMORY_HISTORY,
    listMemoryVersions: MEMORY_HISTORY,
    redactMemoryVersion: CLIENT,
  }),
  ...rows(PeerService, {
    forwardCommand: PEER,
    forwardExecution: PEER,
    forwardTransfer: PEER,
    forwardTunnel: PEER,
    forwardPreviews: PEER,
    announceWatched: PEER,
    forwardNotices: PEER,
    forwardProxyAsk: PEER,
  }),
  ...rows(ProxyService, { connect: PROXY, openTunnel: PROXY }),
  ...rows(SessionResourceService, {
    createSessionResource: CLIENT,
    getSessionResource: CLIENT,
    listSessionResources: CLIENT,
    updateSessionResource: CLIENT,
    deleteSessionResource: CLIENT,
  }),
  ...rows(SessionService, {
    createSession: CLIENT,
    getSession: ["client", "admin", "harness", "worker", "work_item"],
    listSessions: CLIENT,
    updateSession: CLIENT,
    archiveSession: CLIENT,
    deleteSession: CLIENT,
    emitEvents: LOG,
    emitLargeEvents: LOG,
    getEvents: LOG,
    watchEvents: LOG,
    wakeSession: BRAIN,
    forkSession: CLIENT,
    exportSession: CLIENT,
    importSession: CLIENT,
    readPayload: LOG,
  }),
  ...rows(SkillService, {
    uploadSkill: CLIENT,
    getSkill: CLIENT,
    listSkills: CLIENT,
    deleteSkill: CLIENT,
    getSkillVersion: [...CLIENT, "work_item"],
    listSkillVersions: CLIENT,
    deleteSkillVersion: CLIENT,
    downloadSkillVersion: [...CLIENT, "work_item"],
  }),
  ...rows(ThreadService, {
    createThread: HARNESS,
    sendToThread: HARNESS,
    waitForThreads: HARNESS,
    waitForTree: HARNESS,
    listThreads: BRAIN,
    stopThread: BRAIN,
    stopTree: CLIENT,
  }),
  ...rows(VaultService, {
    createVault: CLIENT,
    getVault: CLIENT,
    listVaults: CLIENT,
    updateVault: CLIENT,
    archiveVault: CLIENT,
    deleteVault: CLIENT,
    createCredential: CLIENT,
    getCredential: CLIENT,
    listCredentials: CLIENT,
    updateCredential: CLIENT,
    archiveCredential: CLIENT,
    deleteCredential: CLIENT,
    validateCredential: CLIENT,
    startConnect: CLIENT,
    finishConnect: CLIENT,
    getSealingKey: CLIENT,
  }),
  ...rows(WebhookService, {
    createWebhookEndpoint: CLIENT,
    getWebhookEndpoint: CLIENT,
    listWebhookEndpoints: CLIENT,
    updateWebhookEndpoint: CLIENT,
    deleteWebhookEndpoint: CLIENT,
    rotateWebhookSecret: CLIENT,
    listWebhookDeliveries: CLIENT,
    replayWebhookDeliveries: CLIENT,
  }),
  ...rows(WorkService, {
    pollWork: WORKER,
    ackWork: HOLDER,
    heartbeatWork: HOLDER,
    stopWork: [...CLIENT, ...HOLDER],
    getWork: CLIENT,
    updateWork: CLIENT,
    listWork: [...CLIENT, ...WORKER],
    getWorkStats: [...CLIENT, ...WORKER],
  }),
  ...rows(Health, { check: ANYONE, watch: ANYONE }),
  // Reflection tells nothing but the public contract.
  ...rows(ServerReflection, { serverReflectionInfo: ANYONE }),
  ...rows(ServerReflectionAlpha, { serverReflectionInfo: ANYONE }),
]);

function rows<S extends DescService>(
  service: S,
  table: Readonly<Record<keyof S["method"], Callers>>,
): [string, Callers][] {
  return service.methods.map((method) => [methodPath(method), table[method.localName as keyof S["method"]]]);
}

/** The kinds of callers that may call the method; undefined when it has no row. */
export function callersOf(method: DescMethod): Callers | undefined {
  return POLICY.get(methodPath(method));
}

/** Whether the method needs no credential. */
export function isOpen(method: DescMethod): boolean {
  return callersOf(method)?.includes("anonymous") ?? false;
}

/** Throws UNAUTHENTICATED for a caller without a credential, ROLE_NOT_ALLOWED for one of the wrong kind. */
export function authorise(method: DescMethod, kind: PrincipalKind): void {
  const callers = callersOf(method) ?? [];
  if (callers.includes(kind)) return;
  if (kind === "anonymous") {
    throw new TendonError(
      "UNAUTHENTICATED",
      "no credential was sent: add the header `Authorization: Bearer <key>` or `X-Api-Key: <key>`",
    );
  }
  throw new TendonError(
    "ROLE_NOT_ALLOWED",
    `a ${kind} may not call ${method.name}; it is for: ${callers.length === 0 ? "nobody" : callers.join(", ")}`,
    { role: kind, method: methodPath(method) },
  );
}

/** Throws when a mounted method has no row, so that the server does not start. */
export function assertCovered(services: readonly DescService[]): void {
  const missing = services.flatMap(({ methods }) =>
    methods.filter((method) => !POLICY.has(methodPath(method))),
  );
  if (missing.length > 0) {
    throw new Error(`no row in the policy for: ${missing.map(methodPath).join(", ")}`);
  }
}

/** Every service that the policy knows of the contract itself. */
export const CONTRACT_SERVICES: readonly DescService[] = [
  AdminService,
  AgentService,
  CredentialService,
  DeploymentService,
  EnvironmentService,
  FileService,
  HandAgentService,
  HandService,
  HarnessService,
  MemoryService,
  PeerService,
  ProxyService,
  SessionResourceService,
  SessionService,
  SkillService,
  ThreadService,
  VaultService,
  WebhookService,
  WorkService,
];
