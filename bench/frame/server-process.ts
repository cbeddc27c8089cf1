/** The built server as a process of its own on the bench's Postgres, with no harness, and sessions to write to. */
import { type Connection, dial } from "../../kit/dial/dial.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { startPlatform } from "../../test/kit/platform.ts";
import type { BenchContext } from "./bench.ts";
import { POOL_SIZE, type PrivatePostgres } from "./private-postgres.ts";

export type SessionClient = Client<typeof SessionService>;

export interface ServerProcess {
  readonly url: string;
  /** Of an admin. */
  readonly key: string;
  /** What new sessions are made of. */
  readonly agentId: string;
  readonly environmentId: string;
  readonly sessions: SessionClient;
  /** A client over a connection of its own. */
  connect(): SessionClient;
  newSessions(count: number): Promise<string[]>;
}

/** Sessions that are made at once. */
const AT_ONCE = 20;

export async function startServerProcess(
  context: BenchContext,
  { url }: PrivatePostgres,
): Promise<ServerProcess> {
  context.say("starting the server …");
  const platform = await startPlatform({
    programs: [],
    env: { server: { TENDON_DATABASE_URL: url, TENDON_DATABASE_POOL: String(POOL_SIZE) } },
  });
  context.defer(() => platform.stop());
  const connections: Connection[] = [];
  context.defer(() => {
    for (const connection of connections) connection.close();
  });
  const connect = () => {
    const connection = dial({ url: platform.url, token: () => platform.adminKey, proxy: {} });
    connections.push(connection);
    return connection.client(SessionService);
  };
  const sessions = connect();
  const { agent } = await platform.client(AgentService).createAgent({ spec: { name: "bench" } });
  const agentId = agent?.id ?? "";
  const create = async () => (await sessions.createSession({ agentId })).session?.id ?? "";
  const { session } = await sessions.createSession({ agentId });
  return {
    url: platform.url,
    key: platform.adminKey,
    agentId,
    environmentId: session?.environmentId ?? "",
    sessions,
    connect,
    async newSessions(count) {
      const ids: string[] = [];
      while (ids.length < count) {
        const few = Math.min(AT_ONCE, count - ids.length);
        ids.push(...(await Promise.all(Array.from({ length: few }, create))));
      }
      return ids;
    },
  };
}
