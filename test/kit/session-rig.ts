/** The session area by itself behind a real socket, as one replica of a server; callers say who they are in a header. */
import { generateKeyPairSync } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { Channel, credentials } from "@grpc/grpc-js";
import type { ByteBudget } from "../../kit/byte-budget.ts";
import { type Clock, systemClock } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { listen } from "../../kit/listen/listen.ts";
import { createLogger } from "../../kit/log.ts";
import { type Client, createClient } from "../../kit/rpc/client.ts";
import { createGrpcServer, mountGrpc } from "../../kit/rpc/mount-grpc.ts";
import type { RpcInterceptor } from "../../kit/rpc/pipeline.ts";
import { validationInterceptor } from "../../kit/rpc/validation.ts";
import { type SigningKey, signingKeyFromPem } from "../../kit/sign/key-file.ts";
import { AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { createAgentRules } from "../../server/agent/agent-rules.ts";
import { createFileAttachments } from "../../server/file/attachments.ts";
import { createAttachments } from "../../server/memory/attachments.ts";
import { type Principal, principalKey } from "../../server/ports/principal.ts";
import { createSessionArea, type SessionArea } from "../../server/session/area.ts";
import { createAgentSkills } from "../../server/skill/agent-skills.ts";
import type { CheckpointStore } from "../../server/store/checkpoints.ts";
import type { EventStore } from "../../server/store/events.ts";
import { createAgentStore } from "../../server/store/postgres/agents.ts";
import { createBlobStore } from "../../server/store/postgres/blobs.ts";
import { createBudgetStore } from "../../server/store/postgres/budgets.ts";
import { createCheckpointStore } from "../../server/store/postgres/checkpoints.ts";
import { createClientCallStore } from "../../server/store/postgres/client-calls.ts";
import { createCredentialStore } from "../../server/store/postgres/credentials.ts";
import { createEnvironmentStore } from "../../server/store/postgres/environments.ts";
import { createEventStore } from "../../server/store/postgres/events.ts";
import { createFileStore } from "../../server/store/postgres/files.ts";
import { createHintListener } from "../../server/store/postgres/head-hints.ts";
import { createLeaseStore } from "../../server/store/postgres/leases.ts";
import { createLogCopyStore } from "../../server/store/postgres/log-copies.ts";
import { createMemoryStoreStore } from "../../server/store/postgres/memory-stores.ts";
import { createOutcomeStore } from "../../server/store/postgres/outcomes.ts";
import { createPool, type Pool } from "../../server/store/postgres/pool.ts";
import { createRequestIdStore } from "../../server/store/postgres/request-ids.ts";
import { createRetentionStore } from "../../server/store/postgres/retention.ts";
import { createSessionResourceStore } from "../../server/store/postgres/session-resources.ts";
import { createSessionStore } from "../../server/store/postgres/sessions.ts";
import { createSkillStore } from "../../server/store/postgres/skills.ts";
import { createThreadStore } from "../../server/store/postgres/threads.ts";
import { createVaultStore } from "../../server/store/postgres/vaults.ts";
import { createWorkStore } from "../../server/store/postgres/work.ts";

const log = createLogger("test", "silent");
const NO_REQUEST = { requestId: "", contentHash: new Uint8Array(32) };

/** A workspace with an agent and a default environment, made through the stores. */
export interface SessionWorld {
  readonly workspaceId: string;
  readonly agentId: string;
  readonly environmentId: string;
  /** A session of its own, made at the store. */
  newSession(): Promise<string>;
}

export async function createWorld(pool: Pool): Promise<SessionWorld> {
  const workspaceId = newId("workspace");
  await pool.query("insert into workspaces (workspace_id, name) values ($1, $1)", [workspaceId]);
  const agent = await createAgentStore(pool).create({
    id: newId("agent"),
    workspaceId,
    spec: create(AgentSpecSchema, { name: "tester" }),
    request: NO_REQUEST,
  });
  const environment = await createEnvironmentStore(pool).create({
    id: newId("environment"),
    workspaceId,
    spec: create(EnvironmentSpecSchema, { name: "here" }),
    makeDefault: true,
    request: NO_REQUEST,
  });
  const sessions = createSessionStore(pool);
  return {
    workspaceId,
    agentId: agent.id,
    environmentId: environment.id,
    async newSession() {
      const { session } = await sessions.create({
        sessionId: newId("session"),
        workspaceId,
        agentId: agent.id,
        agentVersion: 1,
        agent: JSON.stringify({ id: agent.id, version: 1, spec: { name: "tester" } }),
        environmentId: environment.id,
        slotEnvironmentIds: {},
        title: "",
        metadata: {},
        vaultIds: [],
        budget: "{}",
        events: [],
        request: NO_REQUEST,
      });
      return session.sessionId;
    },
  };
}

export interface SessionReplica {
  readonly replicaId: string;
  /** What it signs checkpoints with. */
  readonly signingKey: SigningKey;
  readonly area: SessionArea;
  readonly events: EventStore;
  readonly checkpoints: CheckpointStore;
  readonly pool: Pool;
  /** Sessions whose hands were given up. */
  readonly released: string[];
  /** host:port */
  readonly address: string;
  client(principal: Principal): Client<typeof SessionService>;
  /** Cuts every connection of its clients. */
  disconnect(): void;
  stop(): Promise<void>;
}

export function newSigningKey(): Promise<SigningKey> {
  const { privateKey } = generateKeyPairSync("ed25519");
  return signingKeyFromPem(privateKey.export({ type: "pkcs8", format: "pem" }) as string);
}

export async function startReplica(options: {
  url: string;
  world: SessionWorld;
  /** Hears hints of other replicas; without it they are found by asking. */
  listens?: boolean;
  /** Past a pooler; not set: `url`. */
  listenUrl?: string;
  clock?: Clock;
  /** What it may have in memory of large texts; several replicas may share one. */
  assembly?: ByteBudget;
}): Promise<SessionReplica> {
  const { url, world, listens = true, listenUrl = url, clock = systemClock } = options;
  const replicaId = newId("replica");
  const signingKey = await newSigningKey();
  const pool = createPool({ url, max: 8, applicationName: `replica ${replicaId}` });
  const events = createEventStore(pool);
  const checkpoints = createCheckpointStore(pool);
  const leases = createLeaseStore(pool);
  const released: string[] = [];
  const area = createSessionArea({
    agentRules: createAgentRules(
      createAgentStore(pool),
      createAgentSkills(createSkillStore(pool), createAgentStore(pool)),
    ),
    events,
    sessions: createSessionStore(pool),
    requestIds: createRequestIdStore(pool),
    logCopies: createLogCopyStore(pool),
    retention: createRetentionStore(pool),
    blobs: createBlobStore(pool),
    checkpoints,
    work: createWorkStore(pool),
    clientCalls: createClientCallStore(pool),
    budgets: createBudgetStore(pool),
    outcomes: createOutcomeStore(pool),
    threads: createThreadStore(pool),
    signingKey,
    agents: createAgentStore(pool),
    environments: createEnvironmentStore(pool),
    memory: createAttachments(createMemoryStoreStore(pool)),
    files: createFileAttachments(createFileStore(pool), createBlobStore(pool)),
    sessionResources: createSessionResourceStore(pool),
    filesChanged: async () => {},
    skills: createAgentSkills(createSkillStore(pool), createAgentStore(pool)),
    sealing: {
      seal: () =>
        Promise.reject(new TendonError("NOT_CONFIGURED", "no proxy has published a sealing key yet")),
    },
    vaults: createVaultStore(pool),
    credentials: createCredentialStore(pool),
    dispatch: {
      wake: (sessionId) => leases.wake(sessionId),
      withdraw: async (sessionId) => void (await leases.withdraw(sessionId)),
    },
    hands: { releaseSession: async (sessionId) => void released.push(sessionId) },
    defaultWorkspaceId: world.workspaceId,
    clock,
    ...(options.assembly && { assembly: options.assembly }),
    hints: listens
      ? createHintListener({ url: listenUrl, applicationName: `listener ${replicaId}`, log })
      : undefined,
    replicaId,
    log,
  });
  const callers: RpcInterceptor = {
    onCall(context) {
      const text = context.requestHeaders.get("x-principal");
      if (text === undefined) return;
      const { epoch, ...principal } = JSON.parse(text);
      context.set(principalKey, epoch === undefined ? principal : { ...principal, epoch: BigInt(epoch) });
    },
  };
  const grpcServer = createGrpcServer();
  mountGrpc(grpcServer, area.services ?? [], { interceptors: [callers, validationInterceptor()], log });
  const listener = await listen({
    host: "127.0.0.1",
    port: 0,
    h2c: "auto",
    grpcServer,
    httpHandler: (_request, response) => void response.end(),
    log,
  });
  for (const part of area.parts ?? []) await part.start();
  const channels: Channel[] = [];
  return {
    replicaId,
    signingKey,
    area,
    events,
    checkpoints,
    pool,
    released,
    address: `127.0.0.1:${listener.port}`,
    client(principal) {
      const channel = new Channel(`127.0.0.1:${listener.port}`, credentials.createInsecure(), {
        "grpc.use_local_subchannel_pool": 1,
      });
      channels.push(channel);
      const text = JSON.stringify(principal, (_, value) =>
        typeof value === "bigint" ? String(value) : value,
      );
      return createClient(SessionService, channel, { metadata: () => ({ "x-principal": text }) });
    },
    disconnect() {
      for (const channel of channels.splice(0)) channel.close();
    },
    async stop() {
      await area.drain?.(1_000);
      for (const channel of channels) channel.close();
      await listener.close({ graceMs: 0 });
      for (const part of [...(area.parts ?? [])].reverse()) await part.stop();
      await pool.close();
    },
  };
}
