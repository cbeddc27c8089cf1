/**
 * The whole way of a sandbox's connection: a server, a proxy with handlers of the test's own, a hand agent's built program,
 * and hands of a session whose vault has a variable for `api.example` and whose hand has a repository at `git.example`.
 */

import type { MessageInitShape } from "@bufbuild/protobuf";
import { newId } from "../../kit/ids.ts";
import type { SandboxConnection } from "../../mcp-proxy/tunnels/sandbox-connection.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import { NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { LeaseProof } from "../../proto/gen/tendon/v1/event_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "./eventually.ts";
import { type AgentProgram, makeAgentDir, startAgentProgram, tokenFile } from "./hand-agent-program.ts";
import { newSealingKeys, startProxy, type TestProxy, type TestProxyOptions } from "./proxy-rig.ts";
import { collectCall, toolUse } from "./replica-rig.ts";
import type { TestServer } from "./server.ts";
import { startTcpRelay, type TcpRelay } from "./tcp-relay.ts";
import { startVaultRig, type VaultRig } from "./vault-rig.ts";

type Environment = Exclude<MessageInitShape<typeof EnvironmentSpecSchema>, { $typeName: string }>;

export interface TunnelHand {
  readonly sessionId: string;
  readonly handId: string;
  /** Runs a command as a tool call of the session and gives what it wrote. */
  bash(command: string, timeoutMs?: number): Promise<string>;
}

export interface TunnelRig {
  readonly vault: VaultRig;
  readonly variableVault: string;
  /** Where the hand agent keeps its hands. */
  readonly agentDataDir: string;
  /** What the proxy's handlers were given, newest last. */
  readonly taken: SandboxConnection[];
  /** What the handlers do with a connection. */
  handle: (connection: SandboxConnection) => void;
  /** Between the agent and its server. */
  readonly agentsWay: TcpRelay;
  agent: AgentProgram;
  proxy: TestProxy;
  startProxyAt(server: TestServer, options?: Partial<TestProxyOptions>): Promise<TestProxy>;
  newHand(options?: { environment?: Environment; vaultIds?: string[] }): Promise<TunnelHand>;
  stop(): Promise<void>;
}

export async function startTunnelRig(
  agentEnv: Record<string, string> = {},
  {
    servesVariables = true,
    proxyOptions = {},
    onAgentBytes,
  }: {
    servesVariables?: boolean;
    /** For the first proxy and those that come later. */
    proxyOptions?: Partial<TestProxyOptions>;
    /** Told of what passes between the agent and its server. */
    onAgentBytes?: (bytes: Buffer) => void;
  } = {},
): Promise<TunnelRig> {
  const vault = await startVaultRig({ peers: true, servesVariables });
  const agentsWay = await startTcpRelay(vault.server.port, onAgentBytes);
  const { server, home, database } = vault;
  const keys = await newSealingKeys();
  const harnessKey = await server.localKey("harness");
  const taken: SandboxConnection[] = [];
  const startProxyAt = (at: TestServer, options: Partial<TestProxyOptions> = {}) => {
    const handler = (connection: SandboxConnection) => {
      taken.push(connection);
      rig.handle(connection);
    };
    const handlers = { git: handler, egress: handler };
    return startProxy({ url: at.url, key: vault.proxyKey, keys, handlers, ...proxyOptions, ...options });
  };
  const dir = await makeAgentDir();
  const { secret } = await server.client(AdminService).createJoinToken({ workspaceId: home.workspaceId });
  const agent = startAgentProgram(
    [
      "--url",
      `http://127.0.0.1:${agentsWay.port}`,
      "--data-dir",
      `${dir.path}/data`,
      "--token-file",
      await tokenFile(dir.path, secret),
    ],
    { TENDON_HAND_AGENT_ISOLATION: "bubblewrap", ...agentEnv },
  );
  const hands = server.client(HandService, harnessKey);
  const brain = server.client(SessionService, harnessKey);
  const rig: TunnelRig = {
    vault,
    variableVault: "",
    agentDataDir: `${dir.path}/data`,
    taken,
    agentsWay,
    handle: ({ stream }) => stream.pipe(stream),
    agent,
    proxy: await startProxyAt(server),
    startProxyAt,
    async newHand({ environment = {}, vaultIds = [rig.variableVault] } = {}) {
      const spec = { name: newId("environment"), network: { mode: NetworkMode.NONE }, ...environment };
      const made = await server.client(EnvironmentService, home.key).createEnvironment({ spec });
      const sessionId = await home.newSession(vaultIds);
      const lease: Pick<LeaseProof, "leaseId" | "epoch"> = { leaseId: newId("lease"), epoch: 2n };
      await database.pool().query(
        `update sessions set lease_id = $2, lease_epoch = 2, lease_harness_id = $3, lease_replica_id = $4,
           lease_expires_at = clock_timestamp() + interval '1 hour' where session_id = $1`,
        [sessionId, lease.leaseId, newId("harness"), newId("replica")],
      );
      const { hand } = await server
        .client(HandService, home.key)
        .provision(
          { sessionId, environmentId: made.environment!.id, requestId: newId("request") },
          { deadlineMs: 60_000 },
        );
      return {
        sessionId,
        handId: hand!.id,
        async bash(command, timeoutMs = 170_000) {
          const use = await toolUse(brain, sessionId, lease as LeaseProof, { command });
          const { output } = await collectCall(hands.execute({ ...use, timeoutMs: BigInt(timeoutMs) }));
          return output.toString();
        },
      };
    },
    async stop() {
      await rig.proxy.stop();
      rig.agent.process.kill("SIGTERM");
      await rig.agent.ended;
      await agentsWay.close();
      await vault.stop();
      await dir.remove();
    },
  };
  const variableVault = await home.newVault();
  await home.addCredential(
    variableVault,
    {
      kind: {
        case: "environmentVariable",
        value: { name: "API_TOKEN", allowedHosts: ["api.example", "*.wild.example"], inHeaders: true },
      },
    },
    "canary-of-the-variable",
  );
  Object.assign(rig, { variableVault });
  await eventually(async () => {
    const { handAgents } = await server.client(HandService, home.key).listHandAgents({});
    return handAgents.some(({ online }) => online);
  });
  return rig;
}
