/**
 * MCP servers that only a hand agent's network reaches: a network namespace that leads nowhere, a hand agent's program in it
 * whose one way out is the server, and MCP servers that listen there.
 */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { CLOSED_ADDRESS, ClosedNetwork } from "../kit/closed-network.ts";
import { eventually } from "../kit/eventually.ts";
import { type AgentProgram, startAgentProgram, tokenFile } from "../kit/hand-agent-program.ts";
import { type McpRig, SERVER, startMcpRig } from "../kit/mcp-rig.ts";
import { repository } from "../kit/owner-process.ts";
import { whyNoPrivateNetwork } from "../kit/private-network.ts";
import { promised } from "../kit/promised.ts";
import { newSealingKeys, startProxy } from "../kit/proxy-rig.ts";
import { startServer } from "../kit/server.ts";
import { bearer } from "../kit/vault-rig.ts";

const PLAIN = 8080;
const SECURE = 8443;
const STRANGER = 8444;
const whoami = { id: 1, method: "tools/call", params: { name: "whoami", arguments: {} } };

describe.skipIf(whyNoPrivateNetwork() !== undefined)("an MCP server behind a hand agent", () => {
  let rig: McpRig;
  let network: ClosedNetwork;
  let dir: string;
  let agent: AgentProgram;

  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), "tendon-private-"));
    makeCertificate("ours", `IP:${CLOSED_ADDRESS}`);
    makeCertificate("strange", "DNS:elsewhere.example");
    rig = await startMcpRig({ peers: true, upstreamCaFile: join(dir, "ours.pem") });
    network = new ClosedNetwork();
    const program = join(repository, "test/kit/private-mcp-server.mjs");
    const listen = (port: number, name?: string) =>
      network.start([
        process.execPath,
        program,
        CLOSED_ADDRESS,
        String(port),
        ...(name === undefined ? [] : [join(dir, `${name}.pem`), join(dir, `${name}.key`)]),
      ]);
    listen(PLAIN);
    listen(SECURE, "ours");
    listen(STRANGER, "strange");
    await network.door(rig.vault.server.port);
    for (const port of [PLAIN, SECURE, STRANGER]) await network.listens(port);
    await startAgent();
  });
  afterAll(async () => {
    agent?.process.kill("SIGKILL");
    await agent?.ended;
    await network?.remove();
    await rig?.stop();
    rmSync(dir, { recursive: true });
  });

  function makeCertificate(name: string, altName: string): void {
    const files = ["-keyout", join(dir, `${name}.key`), "-out", join(dir, `${name}.pem`)];
    const options = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=private"];
    execFileSync("openssl", ["req", ...options, ...files, "-addext", `subjectAltName=${altName}`], {
      stdio: "ignore",
    });
  }

  /** The first time it joins the pool; later it is the same agent. */
  async function startAgent(): Promise<void> {
    const admin = rig.vault.server.client(AdminService);
    const { workspaceId } = rig.vault.home;
    const { secret } = await admin.createJoinToken({ workspaceId, pool: "lab" });
    agent = startAgentProgram(
      [
        "--url",
        rig.vault.server.url,
        "--data-dir",
        join(dir, "agent"),
        "--token-file",
        await tokenFile(dir, secret),
      ],
      {
        TENDON_HAND_AGENT_ISOLATION: "none",
        TENDON_HAND_AGENT_REACH: `${CLOSED_ADDRESS}:*, 169.254.169.254:80, 127.0.0.1:9`,
      },
      undefined,
      network.inside,
    );
    await online(1);
  }

  async function online(count: number): Promise<void> {
    const admin = rig.vault.server.client(AdminService);
    await eventually(async () => (await admin.getStatus({})).handAgentsOnline === count);
  }

  const sessionFor = (url: string, vaultIds: string[] = []) =>
    rig.newSession({ servers: { [SERVER]: url }, vaultIds });

  async function failureOf(response: Response): Promise<{ type: string; message: string }> {
    const { error } = (await response.json()) as { error: { type: string; message: string } };
    return error;
  }

  test("answers a session's call through the agent, and cannot be reached without it", async () => {
    const session = await sessionFor(`hand-agent+http://lab/${CLOSED_ADDRESS}:${PLAIN}/mcp`);
    const response = await session.post(whoami);
    expect(await response.json()).toMatchObject({
      id: 1,
      result: { content: [{ text: `credential: none, from ${CLOSED_ADDRESS}` }] },
    });
    const direct = fetch(`http://${CLOSED_ADDRESS}:${PLAIN}/mcp`, {
      method: "POST",
      body: JSON.stringify(whoami),
      signal: AbortSignal.timeout(500),
    });
    // Whatever the test's machine has at that address, it is not this server.
    expect(await direct.then((answer) => answer.text()).catch(() => "")).not.toContain("credential");
  });

  test("gets the session's credential over TLS that ends in the proxy, and never by plain HTTP", async () => {
    const { home } = rig.vault;
    const url = `hand-agent://lab/${CLOSED_ADDRESS}:${SECURE}/mcp`;
    const vaultId = await home.newVault();
    await home.addCredential(vaultId, bearer(url), "canary-private");
    const session = await sessionFor(url, [vaultId]);
    const response = await session.post(whoami);
    expect(await response.text()).toContain("credential: given");
    const audited = await rig.vault.audit({ sessionId: session.id, action: "credential.inject" });
    const plain = home.addCredential(vaultId, bearer(url.replace("hand-agent", "hand-agent+http")), "x");
    await expect(plain).rejects.toThrow(/server_url/);
    expect(
      JSON.stringify(audited, (_, value) => (typeof value === "bigint" ? String(value) : value)),
    ).not.toContain("canary-private");
  });

  test("is reached by a plain https:// URL where the environment lists its host, with the credential of that URL", async () => {
    const { home, server } = rig.vault;
    const environments = server.client(EnvironmentService, home.key);
    const spec = { name: "closed", pool: "lab", mcpTunnelHosts: [`${CLOSED_ADDRESS}:${SECURE}`] };
    const { environment } = await environments.createEnvironment({ spec });
    const url = `https://${CLOSED_ADDRESS}:${SECURE}/mcp`;
    const vaultId = await home.newVault();
    await home.addCredential(vaultId, bearer(url), "canary-listed");
    const servers = { [SERVER]: url, stranger: url.replace(`${SECURE}`, `${STRANGER}`) };
    const session = await rig.newSession({ servers, vaultIds: [vaultId], environmentId: environment!.id });
    expect(await (await session.post(whoami)).text()).toContain(`credential: given, from ${CLOSED_ADDRESS}`);
    // A recorded call finds its way as well.
    const toolUseId = await session.uses("whoami");
    expect(await (await session.post(whoami, { toolUseId })).text()).toContain("credential: given");
    // What the environment says now counts for sessions that there are: another pool, and another port.
    const elsewhere = { ...spec, pool: "attic", mcpTunnelHosts: ["*.example", `${CLOSED_ADDRESS}:*`] };
    await environments.updateEnvironment({ environmentId: environment!.id, spec: elsewhere });
    for (const name of [SERVER, "stranger"]) {
      const failure = await failureOf(await session.post(whoami, { server: name }));
      expect(failure.message).toMatch(/has no hand agent in pool "attic"/);
    }
  });

  test("that shows a certificate of another name is not spoken to", async () => {
    const session = await sessionFor(`hand-agent://lab/${CLOSED_ADDRESS}:${STRANGER}/mcp`);
    const response = await session.post(whoami);
    expect(response.ok).toBe(false);
    expect(await failureOf(response)).toMatchObject({ type: "mcp_connection_failed_error" });
  });

  test("is refused where the agent's machine does not name it, and link-local addresses even where it does", async () => {
    const refused = async (place: string) => {
      const session = await sessionFor(`hand-agent+http://lab/${place}/mcp`);
      const response = await session.post(whoami);
      expect(response.ok).toBe(false);
      return failureOf(response);
    };
    const unnamed = await refused("127.0.0.1:7400");
    expect(unnamed.type).toBe("mcp_connection_failed_error");
    expect(unnamed.message).toMatch(/127\.0\.0\.1:7400.*TENDON_HAND_AGENT_REACH/);
    expect((await refused("169.254.169.254:80")).message).toMatch(/nothing is ever sent to/);
    expect((await refused("127.0.0.1:9")).message).toMatch(/was not reached: ECONNREFUSED/);
  });

  test("is not reached through the pool of another workspace, whatever that is called", async () => {
    const client = rig.proxy.fetch;
    const stranger = await rig.vault.elsewhere.newSession([]);
    const url = `hand-agent+http://lab/${CLOSED_ADDRESS}:${PLAIN}/mcp`;
    await expect(client(url, { sessionId: stranger })).rejects.toThrow(/has no hand agent in pool "lab"/);
    const session = await sessionFor(url.replace("lab", "attic"));
    expect((await failureOf(await session.post(whoami))).message).toMatch(
      /has no hand agent in pool "attic"/,
    );
  });

  test("is reached by a proxy at another replica than the agent's", async () => {
    const other = await startServer({ databaseUrl: rig.vault.database.url, peers: true });
    const keys = await newSealingKeys();
    const proxy = await startProxy({ url: other.url, key: rig.vault.proxyKey, keys });
    try {
      const session = await sessionFor(`hand-agent+http://lab/${CLOSED_ADDRESS}:${PLAIN}/mcp`);
      const text = await eventually(async () => {
        const response = await session.post(whoami, { proxyUrl: proxy.proxyUrl });
        return response.ok && response.text();
      });
      expect(text).toContain(`from ${CLOSED_ADDRESS}`);
    } finally {
      await proxy.stop();
      await other.stop();
    }
  });

  test("whose agent dies in the middle of a call is told as not reached, and works again when the agent is back", async () => {
    const session = await sessionFor(`hand-agent+http://lab/${CLOSED_ADDRESS}:${PLAIN}/mcp`);
    const hanging = session.post({ id: 2, method: "tools/call", params: { name: "hang", arguments: {} } });
    await eventually(() =>
      rig.vault.server
        .fetch("/metrics")
        .then(async (response) => /tendon_open_tunnels [1-9]/.test(await response.text())),
    );
    agent.process.kill("SIGKILL");
    await agent.ended;
    const startedMs = performance.now();
    const response = await hanging;
    const text = await response.text();
    expect(performance.now() - startedMs).toBeLessThan(promised(30_000));
    expect(text).toContain("mcp_connection_failed_error");
    // Else the dead one is taken for the one that comes.
    await online(0);
    await startAgent();
    expect(await (await session.post(whoami)).text()).toContain(`from ${CLOSED_ADDRESS}`);
  });
});
