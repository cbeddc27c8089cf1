/**
 * `tendon vault connect` as a person runs it: the built programs, a browser, an authorization server and an MCP server at the
 * far side, up to a session whose brain calls a tool with the token. Then all that the programs have written, stored and been
 * started with is searched for what is secret.
 */
import { execFileSync } from "node:child_process";
import { createWriteStream } from "node:fs";
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { type AuthorizationServer, startAuthorizationServer } from "../kit/authorization-server.ts";
import { searchFor } from "../kit/canary-search.ts";
import { eventually } from "../kit/eventually.ts";
import { type FakeMessagesApi, startFakeMessagesApi, text, toolUse, turn } from "../kit/fake-messages-api.ts";
import { type GuardedMcpServer, startGuardedMcpServer } from "../kit/guarded-mcp-server.ts";
import { type Platform, startPlatform } from "../kit/platform.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { Installation, type RunSetting, readProc, type StartProcess } from "../kit/start-process.ts";

const installation = new Installation();
let database: TestDatabase;
let platform: Platform;
let model: FakeMessagesApi;
let authorization: AuthorizationServer;
let mcp: GuardedMcpServer;
let dir = "";
/** All that commands have printed, and what they were started with. */
const said: string[] = [];

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "tendon-connect-"));
  await writeFile(
    join(dir, "xdg-open"),
    `#!/bin/sh\nprintf %s "$1" > "$OPENED.new" && mv "$OPENED.new" "$OPENED"\n`,
  );
  await chmod(join(dir, "xdg-open"), 0o755);
  authorization = await startAuthorizationServer();
  [database, mcp, model] = await Promise.all([
    createTestDatabase(),
    startGuardedMcpServer(authorization),
    startFakeMessagesApi({
      script: ({ messages }) =>
        JSON.stringify(messages.at(-1)).includes("tool_result")
          ? turn([text("Done.")])
          : turn([toolUse("mcp__notes__note", { text: "hello" })]),
    }),
  ]);
  platform = await startPlatform({
    programs: ["mcp-proxy", "harness"],
    env: {
      server: { TENDON_DATABASE_URL: database.url, TENDON_LOG_LEVEL: "debug" },
      "mcp-proxy": { TENDON_LOG_LEVEL: "debug" },
      harness: { ANTHROPIC_API_KEY: model.apiKey, ANTHROPIC_BASE_URL: model.url, TENDON_LOG_LEVEL: "debug" },
    },
  });
});
afterAll(async () => {
  await installation.dispose();
  await platform?.stop();
  await Promise.all([model?.stop(), mcp?.stop(), authorization?.close()]);
  await database?.drop();
  await rm(dir, { recursive: true, force: true });
});
beforeEach(() => {
  authorization.reset();
  mcp.reset();
});

let commands = 0;

/** Starts the command; `opened` is the address that its browser was given. */
function connect(args: string[], setting: RunSetting = {}) {
  const file = join(dir, `opened-${++commands}`);
  const env = {
    ...setting.env,
    TENDON_URL: platform.url,
    TENDON_API_KEY: platform.adminKey,
    PATH: `${dir}:${process.env.PATH}`,
    OPENED: file,
  };
  const command = installation.startTendon(["vault", "connect", ...args], { ...setting, env });
  const opened = () => eventually(() => readFile(file, "utf8"));
  return { command, opened };
}

async function ended(command: StartProcess) {
  const how = await command.ended();
  said.push(how.stdout, how.stderr);
  return how;
}

/** As a browser that is allowed at once: where it is sent back to. */
async function allowed(address: string): Promise<string> {
  return (await fetch(address, { redirect: "manual" })).headers.get("location")!;
}

async function newVault(): Promise<string> {
  return (await platform.client(VaultService).createVault({ displayName: "mine" })).vault!.id;
}

const credentials = async (vaultId: string) =>
  (await platform.client(VaultService).listCredentials({ vaultId })).credentials;

/** A session whose brain calls the tool; gives the payload of the result. */
async function callOfSession(vaultId: string): Promise<{ is_error: boolean }> {
  const policy = { defaultPolicy: { permission: Permission.ALWAYS_ALLOW } };
  const spec = {
    name: "notes",
    model: { id: "claude-test" },
    mcpServers: [{ name: "notes", url: mcp.url }],
    tools: [{ kind: { case: "mcpToolset" as const, value: { serverName: "notes", ...policy } } }],
  };
  const { agent } = await platform.client(AgentService).createAgent({ spec });
  const sessions = platform.client(SessionService);
  const payload = JSON.stringify({ content: [{ type: "text", text: "note this" }] });
  const { session } = await sessions.createSession({
    agentId: agent!.id,
    vaultIds: [vaultId],
    initialEvents: [{ type: "user.message", payload }],
  });
  return eventually(async () => {
    const { events } = await sessions.getEvents({ sessionId: session!.id, limit: 1000 });
    said.push(JSON.stringify(events.map((event) => event.payload)));
    const result = events.find(({ type }) => type === "agent.mcp_tool_result");
    return result && JSON.parse(result.payload);
  });
}

test("a browser allows it, and a session's brain calls a tool with the token; again, with another", async () => {
  const vaultId = await newVault();
  const { command, opened } = connect([vaultId, mcp.url, "--name", "notes", "--json"]);
  const address = await opened();
  const back = await allowed(address);
  const { host } = new URL(back);
  // What is no answer to this request is refused, and the right one still counts.
  const wrong = new URL(back);
  wrong.searchParams.set("state", "of-somebody-else");
  const noAnswers = [wrong.href, `http://${host}/`, `http://${host}/callback`, `${back}&state=again`];
  for (const place of noAnswers) expect((await fetch(place)).status).toBe(400);
  expect((await fetch(back, { method: "POST" })).status).toBe(400);
  for (const name of ["cmdline", "environ"]) said.push(readProc(command.pid, name));
  const page = await fetch(back);
  expect([page.status, page.headers.get("content-security-policy")]).toEqual([200, "default-src 'none'"]);
  said.push(await page.text());
  const { code, stdout, stderr } = await ended(command);
  expect({ code, stderr }).toMatchObject({ code: 0, stderr: expect.stringContaining(address) });
  expect(JSON.parse(stdout)).toMatchObject({
    display_name: "notes",
    use: { oauth: { server_url: mcp.url } },
  });
  expect(await callOfSession(vaultId)).toMatchObject({ is_error: false });
  expect(mcp.calls("note")).toBe(1);
  const token = mcp.taken.at(-1)!;
  expect(authorization.access.get(token)).toBe(mcp.url);

  // Again: the same credential with other tokens.
  const again = connect([vaultId, mcp.url]);
  await fetch(await allowed(await again.opened()));
  expect(await ended(again.command)).toMatchObject({
    code: 0,
    stderr: expect.stringContaining("were replaced"),
  });
  expect(await credentials(vaultId)).toHaveLength(1);
  expect(await callOfSession(vaultId)).toMatchObject({ is_error: false });
  expect(mcp.taken.at(-1)).not.toBe(token);
});

test("without a browser the address that one was sent to is pasted, what is not it is refused, and the time that is told is the command's own", async () => {
  const vaultId = await newVault();
  const pasted = join(dir, "pasted");
  execFileSync("mkfifo", [pasted]);
  const words = ["/bin/sh", "-c", 'exec "$@" < "$PASTED"', "sh"];
  const args = [vaultId, mcp.url, "--no-browser", "--timeout", "9m"];
  const { command } = connect(args, { prefix: words, env: { PASTED: pasted } });
  const input = createWriteStream(pasted);
  const address = await eventually(() => /^http\S+$/m.exec(command.stderr)?.[0]);
  const [, until] = /Until (\S+ \S+Z), allow/.exec(command.stderr) ?? [];
  expect(Date.parse(until!)).toBeLessThanOrEqual(Date.now() + 9 * 60_000);
  const back = await allowed(address);
  input.write("that is no address\n");
  await eventually(() => command.stderr.includes("not the address that is waited for"));
  input.write(`${back.replace("state=", "state=x")}\n`);
  await eventually(() => command.stderr.split("not the address that is waited for").length === 3);
  input.write(`  ${back}\n`);
  expect(await ended(command)).toMatchObject({ code: 0 });
  input.destroy();
  expect(await credentials(vaultId)).toHaveLength(1);
});

test("a client that is known proves itself with a secret from standard input", async () => {
  const secret = "canary-of-a-known-client-73b1";
  const redirectUris = ["http://127.0.0.1:1/callback"];
  authorization.addClient({ id: "known", secret, way: "client_secret_post", redirectUris });
  authorization.secrets.add(secret);
  authorization.set.metadata = { token_endpoint_auth_methods_supported: ["client_secret_post"] };
  const vaultId = await newVault();
  const options = ["--client-id", "known", "--client-secret-file", "-"];
  const { command, opened } = connect([vaultId, mcp.url, ...options], { input: `${secret}\n` });
  await fetch(await allowed(await opened()));
  const { code, stdout, stderr } = await ended(command);
  expect({ code, stderr }).toMatchObject({ code: 0, stderr: expect.stringContaining("the client known") });
  expect(stdout + stderr).not.toContain(secret);
  expect(await credentials(vaultId)).toHaveLength(1);
});

test("what goes wrong ends the command with 1 and words that help, and nothing is stored", async () => {
  const vaultId = await newVault();
  authorization.set.refusesClients = "invalid_redirect_uri";
  const unregistered = await ended(connect([vaultId, mcp.url]).command);
  expect(unregistered).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(
      /register a client there by hand, with the redirect URI http:.*--client-id/,
    ),
  });
  authorization.reset();
  authorization.set.redirect = (query) => {
    query.delete("code");
    query.set("error", "access_denied");
    query.set("error_description", "canary <script>");
  };
  const refused = connect([vaultId, mcp.url, "--json"]);
  await fetch(await allowed(await refused.opened()));
  const { code, stderr } = await ended(refused.command);
  expect(code).toBe(1);
  expect(stderr).not.toContain("canary");
  expect(JSON.parse(stderr.trim().split("\n").at(-1)!)).toMatchObject({
    error: { reason: "CONNECT_FAILED", metadata: { step: "authorization", problem: "access_denied" } },
  });
  authorization.reset();
  const late = await ended(connect([vaultId, mcp.url, "--timeout", "1ms"]).command);
  expect(late).toMatchObject({ code: 1, stderr: expect.stringContaining("not sent back in time") });
  expect(await credentials(vaultId)).toEqual([]);
});

test("a proxy that is killed after it has traded a code leaves nothing behind, and another connect gets other tokens", async () => {
  const vaultId = await newVault();
  await platform.program("mcp-proxy").end("SIGTERM");
  const doomed = await platform.start("mcp-proxy", { TENDON_FAILPOINTS: "proxy.code_traded=kill" });
  const { command, opened } = connect([vaultId, mcp.url]);
  await fetch(await allowed(await opened()));
  expect(await ended(command)).toMatchObject({ code: 1, stderr: expect.stringContaining("try again") });
  expect(await doomed.ended).toBe("SIGKILL");
  said.push(doomed.log());
  expect(authorization.exchanges.at(-1)!.refusal).toBe("");
  expect(await credentials(vaultId)).toEqual([]);
  await platform.start("mcp-proxy");
  const again = connect([vaultId, mcp.url]);
  await fetch(await allowed(await again.opened()));
  expect(await ended(again.command)).toMatchObject({ code: 0 });
  expect(await credentials(vaultId)).toHaveLength(1);
});

test("no code, verifier, token or client's secret is in logs, arguments, environments, rows, events or what commands print", async () => {
  const place = join(dir, "places");
  await mkdir(place, { recursive: true });
  for (const name of ["server", "mcp-proxy", "harness"] as const) {
    const program = platform.program(name);
    await writeFile(join(place, `log of ${name}`), program.log());
    for (const part of ["cmdline", "environ"])
      await writeFile(join(place, `${part} of ${name}`), readProc(program.pid, part));
  }
  await writeFile(join(place, "said"), said.join("\n"));
  const pool = database.pool();
  const { rows: tables } = await pool.query<{ name: string }>(
    "select format('%I.%I', schemaname, tablename) as name from pg_tables where schemaname not in ('pg_catalog', 'information_schema')",
  );
  for (const { name } of tables) {
    const { rows } = await pool.query<{ row: string }>(`select t::text as row from ${name} t`);
    await writeFile(join(place, `table ${name}`), rows.map(({ row }) => row).join("\n"));
  }
  const { registrations, secrets } = authorization;
  expect(registrations.length).toBeGreaterThanOrEqual(2);
  // A code and a verifier for each connect, its tokens, a secret of each client.
  expect(secrets.size).toBeGreaterThanOrEqual(10);
  const canaries = [...secrets].map((secret, n) => ({ name: `secret ${n}`, secret }));
  expect(await searchFor(canaries, [place])).toEqual([]);
  const control = { name: "control", secret: new URL(mcp.url).host.padEnd(16, "/") };
  const found = await searchFor([control], [place]);
  expect(new Set(found.map(({ file }) => file))).toContain(join(place, "said"));
});
