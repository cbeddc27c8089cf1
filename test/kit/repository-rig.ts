/**
 * Repositories of sessions, all the way: a git host with authentication, a server, the proxy's own handlers, a hand agent's
 * built program, and sessions whose hands clone from that host.
 */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { newId } from "../../kit/ids.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import type { EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import { NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { LeaseProof } from "../../proto/gen/tendon/v1/event_pb.js";
import type { GitRepositoryInputSchema } from "../../proto/gen/tendon/v1/git_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "./eventually.ts";
import { type GitServer, startGitServer } from "./git-server.ts";
import { type AgentProgram, makeAgentDir, startAgentProgram, tokenFile } from "./hand-agent-program.ts";
import { newSealingKeys, startProxy } from "./proxy-rig.ts";
import { collectCall, toolUse } from "./replica-rig.ts";
import { startVaultRig, type VaultRig } from "./vault-rig.ts";

type Environment = Exclude<MessageInitShape<typeof EnvironmentSpecSchema>, { $typeName: string }>;
type Repository = Exclude<MessageInitShape<typeof GitRepositoryInputSchema>, { $typeName: string }>;

export interface RepositorySession {
  readonly sessionId: string;
  /** Runs a command as a tool call of the session and gives what it wrote; with `whole`, what the model is told. */
  bash(command: string, options?: { whole?: boolean }): Promise<string>;
  /** Payloads of its events of this type. */
  events(type: string): Promise<Record<string, unknown>[]>;
}

export interface RepositoryRig {
  readonly host: GitServer;
  readonly vault: VaultRig;
  readonly agent: AgentProgram;
  readonly agentDir: string;
  url(path: string): string;
  /** A vault with a credential for this much of the host; gives its id and the credential's. */
  newVault(
    path: string,
    secret?: string,
    pushBranches?: string[],
  ): Promise<{ vaultId: string; credentialId: string }>;
  newSession(given: {
    repositories: Repository[];
    vaultIds?: string[];
    environment?: Environment;
  }): Promise<RepositorySession>;
  stop(): Promise<void>;
}

/** Whom commits are by. */
const AUTHOR = {
  GIT_AUTHOR_NAME: "Someone",
  GIT_AUTHOR_EMAIL: "someone@example.com",
  GIT_COMMITTER_NAME: "Someone",
  GIT_COMMITTER_EMAIL: "someone@example.com",
};

export async function startRepositoryRig(agentEnv: Record<string, string> = {}): Promise<RepositoryRig> {
  const host = await startGitServer();
  const vault = await startVaultRig();
  const { server, home } = vault;
  const proxy = await startProxy({
    url: server.url,
    key: vault.proxyKey,
    keys: await newSealingKeys(),
    upstreamCaFile: host.caFile,
  });
  const dir = await makeAgentDir();
  const { secret } = await server.client(AdminService).createJoinToken({ workspaceId: home.workspaceId });
  const agentDir = `${dir.path}/data`;
  const agent = startAgentProgram(
    ["--url", server.url, "--data-dir", agentDir, "--token-file", await tokenFile(dir.path, secret)],
    { TENDON_HAND_AGENT_ISOLATION: "bubblewrap", ...agentEnv },
  );
  const isOnline = async () => {
    const { handAgents } = await server.client(HandService, home.key).listHandAgents({});
    return handAgents.some(({ online }) => online);
  };
  await eventually(isOnline, { withinMs: 60_000 });
  const url = (path: string) => `https://127.0.0.1:${host.port}/${path}`;
  return {
    host,
    vault,
    agent,
    agentDir,
    url,
    async newVault(path, value = host.login.split(":")[1]!, pushBranches = []) {
      const vaultId = await home.newVault();
      const use = { kind: { case: "git" as const, value: { url: url(path), pushBranches } } };
      const credentialId = await home.addCredential(vaultId, use, { value, userName: "bot" });
      return { vaultId, credentialId };
    },
    newSession: (given) => newSession(vault, given),
    async stop() {
      agent.process.kill("SIGTERM");
      await agent.ended;
      await proxy.stop();
      await vault.stop();
      await host.stop();
      await dir.remove();
    },
  };
}

async function newSession(
  { server, home, database }: VaultRig,
  { repositories, vaultIds = [], environment = {} }: Parameters<RepositoryRig["newSession"]>[0],
): Promise<RepositorySession> {
  const spec = {
    name: newId("environment"),
    network: { mode: NetworkMode.NONE },
    ...environment,
    variables: { ...AUTHOR, ...environment.variables },
  };
  const made = await server.client(EnvironmentService, home.key).createEnvironment({ spec });
  const { agent } = await server.client(AgentService, home.key).createAgent({ spec: { name: "a" } });
  const { session } = await home.sessions.createSession({
    agentId: agent!.id,
    environmentId: made.environment!.id,
    vaultIds,
    resources: repositories.map((value) => ({ kind: { case: "gitRepository" as const, value } })),
  });
  const sessionId = session!.id;
  const lease = { leaseId: newId("lease"), epoch: 2n } as LeaseProof;
  await database.pool().query(
    `update sessions set lease_id = $2, lease_epoch = 2, lease_harness_id = $3, lease_replica_id = $4,
       lease_expires_at = clock_timestamp() + interval '1 hour' where session_id = $1`,
    [sessionId, lease.leaseId, newId("harness"), newId("replica")],
  );
  const harnessKey = await server.localKey("harness");
  const brain = server.client(SessionService, harnessKey);
  const hands = server.client(HandService, harnessKey);
  return {
    sessionId,
    async bash(command, { whole = false } = {}) {
      const use = await toolUse(brain, sessionId, lease, { command });
      const { output, result } = await collectCall(hands.execute({ ...use, timeoutMs: 60_000n }));
      return whole ? result!.content : output.toString();
    },
    async events(type) {
      const { events } = await home.sessions.getEvents({ sessionId, types: [type] });
      return events.map(({ payload }) => JSON.parse(payload) as Record<string, unknown>);
    },
  };
}
