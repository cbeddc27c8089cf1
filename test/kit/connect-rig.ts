/**
 * Vaults that are connected by OAuth's authorization code: a real server and proxy, an authorization server that checks what
 * it is sent, an MCP server that takes its tokens alone, and a browser that is sent back at once.
 */
import { type ConnectState, ConnectStates } from "../../mcp-proxy/credentials/connect/connect-state.ts";
import type {
  FinishConnectResponse,
  StartConnectResponse,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { type AuthorizationServer, startAuthorizationServer } from "./authorization-server.ts";
import { type GuardedMcpServer, startGuardedMcpServer } from "./guarded-mcp-server.ts";
import { newSealingKeys, startProxy, type TestProxy } from "./proxy-rig.ts";
import { needOf, plain, startVaultRig, type VaultRig } from "./vault-rig.ts";

export const REDIRECT = "http://127.0.0.1:45678/callback";

export type Started = StartConnectResponse;
type StartOptions = Parameters<VaultRig["home"]["vaults"]["startConnect"]>[0];

export interface ConnectRig extends VaultRig {
  readonly proxy: TestProxy;
  readonly authorization: AuthorizationServer;
  readonly mcp: GuardedMcpServer;
  /** All is well again at the far side, and it has seen nothing. */
  reset(): void;
  begin(vaultId: string, more?: Partial<StartOptions>): Promise<Started>;
  /** As a browser: where it is sent back to, as FinishConnect takes it. */
  browse(started: Started): Promise<Answer>;
  finish(vaultId: string, started: Started, more?: object): Promise<FinishConnectResponse>;
  /** The state as a proxy with the same keys seals it, with something else inside. */
  changed(started: Started, change: Partial<ConnectState>): Promise<string>;
  /** The token that a new session of the vault would send. */
  tokenOf(vaultId: string): Promise<string | undefined>;
  /** How many credentials the vault has. */
  stored(vaultId: string): Promise<number>;
  /** What became of credentials in it, oldest first. */
  steps(vaultId: string): Promise<object[]>;
}

interface Answer {
  readonly state: string;
  readonly iss: string;
  readonly error: string;
  readonly code?: ReturnType<typeof plain>;
}

export async function startConnectRig(): Promise<ConnectRig> {
  const rig = await startVaultRig();
  const { home } = rig;
  const proxy = await startProxy({ url: rig.server.url, key: rig.proxyKey, keys: await newSealingKeys() });
  const authorization = await startAuthorizationServer();
  const mcp = await startGuardedMcpServer(authorization);
  const browse = async ({ authorizationUrl }: Started) => {
    const response = await fetch(authorizationUrl, { redirect: "manual" });
    const query = new URL(response.headers.get("location")!).searchParams;
    const said = (name: string) => query.get(name) ?? "";
    const code = query.has("code") ? plain(said("code")) : undefined;
    return { state: said("state"), iss: said("iss"), error: said("error"), ...(code && { code }) };
  };
  return {
    ...rig,
    proxy,
    authorization,
    mcp,
    browse,
    reset() {
      authorization.reset();
      mcp.reset();
      const { seen, exchanges, registrations, authorizations } = authorization;
      for (const list of [seen, exchanges, registrations, authorizations, mcp.seen]) list.length = 0;
    },
    begin: (vaultId, more = {}) =>
      home.vaults.startConnect({
        ...{ vaultId, serverUrl: mcp.url, redirectUri: REDIRECT },
        ...more,
      } as StartOptions),
    async finish(vaultId, started, more = {}) {
      const { connectState } = started;
      return home.vaults.finishConnect({ vaultId, connectState, ...(await browse(started)), ...more });
    },
    async changed({ connectState }, change) {
      const states = new ConnectStates(proxy.keys);
      return states.seal({ ...(await states.open(connectState)), ...change });
    },
    async tokenOf(vaultId) {
      const sessionId = await home.newSession([vaultId]);
      const grant = await proxy.credentials.grant(needOf(home, sessionId, mcp.url));
      return grant?.headers.authorization?.replace("Bearer ", "");
    },
    stored: async (vaultId) => (await home.vaults.listCredentials({ vaultId })).credentials.length,
    steps: async (vaultId) =>
      (await rig.audit({ subject: vaultId }))
        .map(({ action, detail }) => ({ action, ...JSON.parse(detail) }))
        .filter(({ action }) => action.startsWith("credential."))
        .reverse(),
    async stop() {
      await proxy.stop();
      await authorization.close();
      await mcp.stop();
      await rig.stop();
    },
  };
}
