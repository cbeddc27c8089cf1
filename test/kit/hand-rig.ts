/** The hands area behind a real port over a real database, with callers of any kind. */
import { systemClock } from "../../kit/clock.ts";
import { type Connection, dial } from "../../kit/dial/dial.ts";
import { newId } from "../../kit/ids.ts";
import { type Listener, listen } from "../../kit/listen/listen.ts";
import { createLogger } from "../../kit/log.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { createGrpcServer, mountGrpc } from "../../kit/rpc/mount-grpc.ts";
import type { RpcInterceptor } from "../../kit/rpc/pipeline.ts";
import { validationInterceptor } from "../../kit/rpc/validation.ts";
import type { Preview } from "../../proto/gen/tendon/v1/event_pb.js";
import { HandAgentService } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { hashJoinToken } from "../../server/hand/agent-service.ts";
import { createHandArea, type HandArea } from "../../server/hand/area.ts";
import type { HandTiming } from "../../server/hand/timing.ts";
import { type Principal, principalKey } from "../../server/ports/principal.ts";
import type { Advance } from "../../server/ports/session-log.ts";
import type { Pool } from "../../server/store/postgres/pool.ts";
import { createPostgresStore } from "../../server/store/postgres/store.ts";
import type { Store } from "../../server/store/store.ts";
import { type ScriptedAgentOptions, ScriptedHandAgent } from "./scripted-hand-agent.ts";

export interface HandRigOptions {
  pool: Pool;
  timing?: Partial<HandTiming>;
  replicaId?: string;
}

/** Times that let tests see bounds without long waits. */
export const QUICK: Partial<HandTiming> = {
  heartbeatEveryMs: 200,
  // Well above what a busy machine starves an event loop for.
  heartbeatTimeoutMs: 8_000,
  readerStallMs: 200,
  sweepEveryMs: 100,
  pollResultsMs: 50,
  lookAgainMs: 100,
  releaseWaitMs: 5_000,
};

export class HandRig {
  readonly store: Store;
  readonly pool: Pool;
  readonly announced: Advance[] = [];
  readonly previews: { sessionId: string; previews: readonly Preview[] }[] = [];
  area!: HandArea;
  listener!: Listener;
  workspaceId = "";
  environmentId = "";
  private readonly options: HandRigOptions;
  private readonly connections: Connection[] = [];
  private readonly agents: ScriptedHandAgent[] = [];

  constructor(options: HandRigOptions) {
    this.options = options;
    this.pool = options.pool;
    this.store = createPostgresStore(options.pool);
  }

  async start(): Promise<void> {
    const installation = await this.store.installation.ensure();
    this.workspaceId = installation.defaultWorkspaceId;
    const logger = createLogger("test", "silent");
    this.area = createHandArea({
      store: this.store,
      log: {
        announce: (advance) => this.announced.push(advance),
        publishPreviews: (sessionId, previews) => this.previews.push({ sessionId, previews }),
      },
      clock: systemClock,
      logger,
      timing: { ...QUICK, ...this.options.timing },
      replicaId: this.options.replicaId ?? newId("replica"),
      defaultWorkspaceId: this.workspaceId,
      destroyPeer: (peer) => this.listener.destroyPeer(peer),
    });
    const grpcServer = createGrpcServer();
    mountGrpc(grpcServer, [...this.area.services!], {
      interceptors: [principalInterceptor(() => this.workspaceId), validationInterceptor()],
      log: logger,
    });
    this.listener = await listen({
      host: "127.0.0.1",
      port: 0,
      h2c: "auto",
      grpcServer,
      httpHandler: (_request, response) => void response.end(),
      log: logger,
    });
    for (const part of this.area.parts ?? []) await part.start();
    if (this.environmentId === "") this.environmentId = await this.environment({ isDefault: true });
  }

  async stop(): Promise<void> {
    for (const agent of this.agents.splice(0)) await agent.disconnect();
    for (const connection of this.connections.splice(0)) connection.close();
    await this.listener.close({ graceMs: 0 });
    for (const part of [...(this.area.parts ?? [])].reverse()) await part.stop();
  }

  get url(): string {
    return `http://127.0.0.1:${this.listener.port}`;
  }

  hands(principal: Principal): Client<typeof HandService> {
    return this.open(principal).client(HandService);
  }

  agentService(principal: Principal): Client<typeof HandAgentService> {
    return this.open(principal).client(HandAgentService);
  }

  private open(principal: Principal): Connection {
    const connection = dial({ url: this.url, token: () => tokenOf(principal), proxy: {} });
    this.connections.push(connection);
    return connection;
  }

  get harness(): Client<typeof HandService> {
    return this.hands({ kind: "harness", keyId: "apikey_h", workspaceId: undefined });
  }

  get client(): Client<typeof HandService> {
    return this.hands({ kind: "client", keyId: "apikey_c", workspaceId: this.workspaceId });
  }

  get admin(): Client<typeof HandService> {
    return this.hands({ kind: "admin", keyId: "apikey_a", workspaceId: undefined });
  }

  /** An enrolled hand agent that has not connected yet. */
  async agent(
    options: Partial<ScriptedAgentOptions> & { pool?: string; name?: string } = {},
  ): Promise<ScriptedHandAgent> {
    const handAgentId = newId("handAgent");
    const poolName = options.pool ?? "";
    await this.pool.query(
      `insert into hand_agents (hand_agent_id, workspace_id, pool, name, public_key, join_token_id) values ($1, $2, $3, $4, $5, 'jointok_x')`,
      [handAgentId, this.workspaceId, poolName, options.name ?? "", Buffer.from(handAgentId)],
    );
    const token = tokenOf({ kind: "hand_agent", handAgentId, workspaceId: this.workspaceId, pool: poolName });
    const agent = new ScriptedHandAgent({ handAgentId, url: this.url, token, ...options });
    this.agents.push(agent);
    return agent;
  }

  /** A join token for the real agent. */
  async joinToken(): Promise<string> {
    const token = `tj_${newId("request")}`;
    await this.pool.query(
      `insert into join_tokens (join_token_id, workspace_id, pool, secret_hash, uses_left, expires_at)
       values ($1, $2, '', $3, 1, now() + interval '1 hour')`,
      [`jointok_${token}`, this.workspaceId, hashJoinToken(token)],
    );
    return token;
  }

  async environment(spec: { isDefault?: boolean } & Record<string, unknown> = {}): Promise<string> {
    const { isDefault = false, ...rest } = spec;
    const environmentId = newId("environment");
    await this.pool.query(
      `insert into environments (environment_id, workspace_id, name, spec, is_default) values ($1, $2, $1, $3, $4)`,
      [environmentId, this.workspaceId, JSON.stringify({ name: environmentId, ...rest }), isDefault],
    );
    return environmentId;
  }

  /** How long its hands may take to be made or resumed from now on, those that are there too. */
  async limitProvisioning(environmentId: string, timeoutMs: number): Promise<void> {
    for (const [table, column] of [
      ["environments", "spec"],
      ["hands", "environment"],
    ])
      await this.pool.query(
        `update ${table} set ${column} = (${column}::jsonb || jsonb_build_object('provisionTimeoutMs', $2::int))::text where environment_id = $1`,
        [environmentId, timeoutMs],
      );
  }

  /** A session whose brain holds a lease. */
  async session(environmentId = this.environmentId): Promise<RigSession> {
    const sessionId = newId("session");
    const leaseId = newId("lease");
    await this.pool.query(
      `insert into sessions (session_id, workspace_id, agent_id, agent_version, agent, environment_id, lease_id, lease_epoch, lease_expires_at)
       values ($1, $2, 'agent_x', 1, '{}', $3, $4, 1, now() + interval '1 hour')`,
      [sessionId, this.workspaceId, environmentId, leaseId],
    );
    return new RigSession(this, sessionId, leaseId);
  }
}

export interface RigCall {
  readonly sessionId: string;
  readonly executionId: string;
  readonly slot: string;
  readonly name: string;
  readonly input: string;
  readonly lease: { leaseId: string; epoch: bigint };
}

export class RigSession {
  readonly id: string;
  lease: { leaseId: string; epoch: bigint };
  private readonly rig: HandRig;

  constructor(rig: HandRig, id: string, leaseId: string) {
    this.rig = rig;
    this.id = id;
    this.lease = { leaseId, epoch: 1n };
  }

  async append(type: string, payload: unknown): Promise<string> {
    const id = newId("event");
    await this.rig.store.events.append({
      sessionId: this.id,
      authority: "brain",
      lease: this.lease,
      events: [{ id, type, threadId: "", payload: JSON.stringify(payload), internal: undefined }],
    });
    return id;
  }

  /** A tool use in the log, as a request for Execute. */
  async toolUse(name: string, input: Record<string, unknown>, slot = ""): Promise<RigCall> {
    await this.append("span.model_request_start", {});
    const executionId = await this.append("agent.tool_use", {
      name,
      input,
      ...(slot === "" ? {} : { hand: slot }),
    });
    return { sessionId: this.id, executionId, slot, name, input: JSON.stringify(input), lease: this.lease };
  }

  /** Its turn is over: no brain runs it until `wake`. */
  async rest(): Promise<void> {
    await this.rig.pool.query(
      "update sessions set lease_expires_at = now() - interval '1 second' where session_id = $1",
      [this.id],
    );
  }

  async wake(): Promise<void> {
    await this.rig.pool.query(
      "update sessions set lease_expires_at = now() + interval '1 hour' where session_id = $1",
      [this.id],
    );
  }

  /** Another brain takes over: the lease of before is fenced. */
  async takeOver(): Promise<void> {
    const leaseId = newId("lease");
    const epoch = this.lease.epoch + 1n;
    await this.rig.pool.query("update sessions set lease_id = $2, lease_epoch = $3 where session_id = $1", [
      this.id,
      leaseId,
      String(epoch),
    ]);
    this.lease = { leaseId, epoch };
  }

  async events(
    type?: string,
  ): Promise<{ type: string; position: number; payload: Record<string, unknown> }[]> {
    const { rows } = await this.rig.pool.query<{ type: string; position: number; payload: string }>(
      "select type, position, payload from events where session_id = $1 and ($2::text is null or type = $2) order by position",
      [this.id, type ?? null],
    );
    return rows.map((row) => ({ ...row, payload: JSON.parse(row.payload) as Record<string, unknown> }));
  }
}

function tokenOf(principal: Principal): string {
  return Buffer.from(JSON.stringify(principal)).toString("base64url");
}

/** Who calls is what the token says: authentication has tests of its own. */
function principalInterceptor(workspaceId: () => string): RpcInterceptor {
  return {
    onCall(context) {
      const token = context.requestHeaders.get("authorization")?.replace("Bearer ", "");
      const text = token === undefined ? '{"kind":"anonymous"}' : textOfToken(token);
      const { sub: handAgentId, ...principal } = JSON.parse(text) as Principal & { sub?: string };
      // The real agent signs what it says; no other field of that is used here.
      const said: Principal =
        handAgentId === undefined
          ? principal
          : { kind: "hand_agent", handAgentId, workspaceId: workspaceId(), pool: "" };
      context.set(principalKey, said);
    },
  };
}

/** The whole of a token of `tokenOf`, the claims of one that the real agent signed. */
function textOfToken(token: string): string {
  const [first, claims] = token.split(".");
  return Buffer.from(claims ?? first!, "base64url").toString();
}
