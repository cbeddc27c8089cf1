/**
 * R22: secrets of every kind in a whole platform of real programs, through a flow with failures and a killed proxy; then all
 * that the programs have written, stored, sent and been started with is searched. Every place is given a control that the
 * same search has to find.
 */
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { afterAll, beforeAll, expect, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { dial } from "../../kit/dial/dial.ts";
import { newId } from "../../kit/ids.ts";
import { loadOrCreateKeyFile } from "../../kit/sign/key-file.ts";
import { SESSION_TOKEN_AUDIENCE, signToken } from "../../kit/sign/token.ts";
import { sealContent } from "../../kit/vault/sealed-content.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import {
  type CredentialUseSchema,
  type PlainSecretSchema,
  SealedContentSchema,
  VaultService,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { type Canary, formsOf, newCanary, searchFor } from "../kit/canary-search.ts";
import { type CountingMcpServer, startCountingMcpServer } from "../kit/counting-mcp-server.ts";
import { eventually } from "../kit/eventually.ts";
import { type FakeMessagesApi, followInstructions, startFakeMessagesApi } from "../kit/fake-messages-api.ts";
import { freePort } from "../kit/free-port.ts";
import { type OauthSide, startOauthSide } from "../kit/oauth-side.ts";
import { type OwnPostgres, startOwnPostgres } from "../kit/own-postgres.ts";
import { type Platform, type ProgramName, type RunningProgram, startPlatform } from "../kit/platform.ts";
import { descendantsOf } from "../kit/process-tree.ts";
import { addressOfProxy } from "../kit/proxy-address.ts";
import { type SpanReceiver, startSpanReceiver } from "../kit/span-receiver.ts";
import { readProc } from "../kit/start-process.ts";

type Use = MessageInitShape<typeof CredentialUseSchema>;
type Secret = MessageInitShape<typeof PlainSecretSchema>;

const PROGRAMS: readonly ProgramName[] = ["server", "mcp-proxy", "harness", "hand-agent"];
const CONTROL = newCanary("control", "");
const MODEL_KEY = newCanary("model key", "");
const BUSY = {
  kind: "http_failure" as const,
  status: 529,
  errorType: "overloaded_error",
  message: `Overloaded: ${MODEL_KEY.secret}`,
};
const canaries: Canary[] = [MODEL_KEY];
const everRan: RunningProgram[] = [];
/** Whatever a caller was told. */
const answers: string[] = [];

let postgres: OwnPostgres;
let platform: Platform;
let model: FakeMessagesApi;
let far: CountingMcpServer;
let oauth: OauthSide;
let spans: SpanReceiver;
let dir = "";
let keyFile = "";

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "tendon-canaries-"));
  keyFile = join(dir, "model.key");
  await writeFile(keyFile, MODEL_KEY.secret, { mode: 0o600 });
  [postgres, model, far, oauth, spans] = await Promise.all([
    startOwnPostgres(),
    startFakeMessagesApi({
      apiKey: MODEL_KEY.secret,
      // The first answer is an error that repeats the key.
      script: (request, n) => (n === 1 ? BUSY : followInstructions(request)),
    }),
    startCountingMcpServer(),
    startOauthSide(),
    startSpanReceiver(),
  ]);
  const common = { CONTROL: CONTROL.secret, TENDON_LOG_LEVEL: "debug", TENDON_OTLP_ENDPOINT: spans.url };
  platform = await startPlatform({
    programs: ["mcp-proxy", "harness", "hand-agent"],
    env: {
      server: { ...common, TENDON_DATABASE_URL: postgres.url, TENDON_DATABASE_POOL: "5" },
      "mcp-proxy": common,
      harness: {
        ...common,
        TENDON_MODEL_RETRY_FIRST_MS: "10",
        ANTHROPIC_API_KEY_FILE: keyFile,
        ANTHROPIC_BASE_URL: model.url,
      },
      "hand-agent": common,
    },
  });
  everRan.push(...PROGRAMS.map((name) => platform.program(name)));
});
afterAll(async () => {
  await platform?.stop();
  await Promise.all([postgres?.stop(), model?.stop(), far?.stop(), oauth?.close(), spans?.stop()]);
  await rm(dir, { recursive: true, force: true });
});

const told = async (asked: Promise<unknown>) => {
  const answer = await asked.catch((error: unknown) => error);
  const text = answer instanceof Response ? `${answer.status} ${await answer.text()}` : described(answer);
  answers.push(text);
  return text;
};

function described(answer: unknown): string {
  const more = answer instanceof Error ? `${answer.message} ${answer.stack}` : "";
  return `${more} ${JSON.stringify(answer, (_, value) => (typeof value === "bigint" ? String(value) : value))}`;
}

function planted(name: string, tail?: string): string {
  const canary = newCanary(name, tail);
  canaries.push(canary);
  return canary.secret;
}

/** A credential whose secret the server sees, and one that its caller has sealed. */
async function addBoth(
  vaults: [string, string],
  use: Use,
  secretOf: (form: string) => Secret,
): Promise<string[]> {
  const client = platform.client(VaultService);
  const [plainVault, sealedVault] = vaults;
  const form = { case: "plain" as const, value: secretOf("plain write") };
  const plain = await client.createCredential({ vaultId: plainVault, use, secret: { form } });
  const { key } = await client.getSealingKey({});
  const { vault } = await client.getVault({ vaultId: sealedVault });
  const credentialId = newId("credential");
  const content = create(SealedContentSchema, {
    version: 1,
    workspaceId: vault!.workspaceId,
    vaultId: sealedVault,
    credentialId,
    use,
    secret: secretOf("sealed write"),
  });
  const sealed = { form: { case: "sealed" as const, value: await sealContent(key!, content) } };
  await client.createCredential({ vaultId: sealedVault, credentialId, use, secret: sealed });
  return [plain.credential!.id, credentialId];
}

async function fillVaults(deadUrl: string): Promise<[string, string]> {
  const client = platform.client(VaultService);
  const newVault = async () => (await client.createVault({ displayName: "a vault" })).vault!.id;
  const vaults: [string, string] = [await newVault(), await newVault()];
  const bearerOf = (serverUrl: string): Use => ({ kind: { case: "staticBearer", value: { serverUrl } } });
  const tokenEndpoint = oauth.tokenUrl;
  const oauthUse = {
    serverUrl: oauth.mcpUrl,
    tokenEndpoint,
    clientId: "c",
    clientAuth: "client_secret_basic",
  };
  const kinds: [name: string, use: Use, tail?: string][] = [
    ["bearer", bearerOf(far.url)],
    ["bearer that is wrong", bearerOf(`${oauth.url}/wrong`)],
    ["bearer of a dead server", bearerOf(deadUrl)],
    ["bearer of a refused destination", bearerOf("https://169.254.169.254/mcp")],
    [
      "header",
      { kind: { case: "header", value: { serverUrl: `${far.url}/h`, headerName: "x-key" } } },
      '+/"\\a',
    ],
    ["git token", { kind: { case: "git", value: { url: "https://git.example.com" } } }],
    [
      "variable",
      {
        kind: {
          case: "environmentVariable",
          value: { name: "KEY", allowedHosts: ["a.example.com"], inHeaders: true },
        },
      },
      '+/"\\a',
    ],
  ];
  const ids: string[] = [];
  for (const [name, use, tail] of kinds) {
    const userName = name === "git token" ? "somebody" : "";
    ids.push(
      ...(await addBoth(vaults, use, (form) => ({ value: planted(`${name}, ${form}`, tail), userName }))),
    );
  }
  const oauthIds = await addBoth(vaults, { kind: { case: "oauth", value: oauthUse } }, (form) => {
    const { accessToken, refreshToken } = oauth.newGrant();
    const expiresAt = timestampFromMs(Date.now() - 1_000);
    return { value: accessToken, refreshToken, clientSecret: planted(`client secret, ${form}`), expiresAt };
  });
  for (const credentialId of [...ids, ...oauthIds]) await told(client.validateCredential({ credentialId }));
  // A token endpoint that says what it was sent.
  const [failing = ""] = oauthIds;
  const { secrets } = oauth;
  oauth.failWith = {
    status: 400,
    body: JSON.stringify({ error: "invalid_grant", error_description: secrets.join(" ") }),
  };
  oauth.delayMs = 0;
  const again = {
    value: secrets[0]!,
    refreshToken: secrets[1]!,
    expiresAt: timestampFromMs(Date.now() - 1_000),
  };
  const form = {
    case: "plain" as const,
    value: { ...again, clientSecret: planted("client secret, replaced") },
  };
  await told(client.updateCredential({ credentialId: failing, secret: { form } }));
  await told(client.validateCredential({ credentialId: failing }));
  oauth.failWith = undefined;
  // What is wrong in itself is told without the value.
  const wrong = {
    form: { case: "plain" as const, value: { value: `${planted("secret that is refused")}\n` } },
  };
  await told(
    client.createCredential({ vaultId: vaults[0], use: bearerOf("http://127.0.0.1:9/x"), secret: wrong }),
  );
  return vaults;
}

/** A session that this test holds, as a brain does; calls go to the proxy with its token. */
async function heldSession(servers: Record<string, string>, vaultIds: string[]) {
  const spec = {
    name: "caller",
    mcpServers: Object.entries(servers).map(([name, url]) => ({ name, url })),
    tools: Object.keys(servers).map((serverName) => ({
      kind: { case: "mcpToolset" as const, value: { serverName } },
    })),
  };
  const { agent } = await platform.client(AgentService).createAgent({ spec });
  const { session } = await platform.client(SessionService).createSession({ agentId: agent!.id, vaultIds });
  const sessionId = session!.id;
  const lease = { leaseId: newId("lease"), epoch: 1n };
  await postgres.pool.query("update sessions set lease_epoch = 1, lease_id = $2 where session_id = $1", [
    sessionId,
    lease.leaseId,
  ]);
  const key = await loadOrCreateKeyFile(join(platform.dataDir, "session-token.key"));
  const claims = { workspace: session!.workspaceId, epoch: "1" };
  const named = { audience: SESSION_TOKEN_AUDIENCE, subject: sessionId, claims };
  const token = await signToken(key, named, 600_000, systemClock);
  canaries.push({ name: "session token", secret: token });
  const harnessKey = (await readFile(join(platform.dataDir, "harness.key"), "utf8")).trim();
  const uses = async (server: string) => {
    const brain = dial({ url: platform.url, token: () => harnessKey, proxy: {} });
    const id = newId("event");
    const payload = JSON.stringify({ mcp_server_name: server, name: "note", input: {} });
    const events = [{ id, type: "agent.mcp_tool_use", payload }];
    await brain.client(SessionService).emitEvents({ sessionId, lease, events });
    brain.close();
    return id;
  };
  const call = async (server: string, toolUseId?: string, bearer = token) => {
    const url = await addressOfProxy(platform.program("mcp-proxy"));
    return fetch(`${url}/mcp/${sessionId}/${server}`, {
      method: "POST",
      headers: {
        authorization: `Bearer ${bearer}`,
        accept: "application/json, text/event-stream",
        "content-type": "application/json",
        ...(toolUseId !== undefined && { "tendon-tool-use-id": toolUseId }),
      },
      body: JSON.stringify({
        jsonrpc: "2.0",
        id: 1,
        method: "tools/call",
        params: { name: "note", arguments: {} },
      }),
    });
  };
  return { sessionId, uses, call };
}

const SAID = { type: "user.message", payload: "" };
const message = (text: string) => ({
  ...SAID,
  payload: JSON.stringify({ content: [{ type: "text", text }] }),
});

/** A session that the harness runs, whose command looks for all that a sandbox can see, and stays behind in its hand. */
async function lookAround(): Promise<string> {
  const tools = [{ kind: { case: "handToolset" as const, value: {} } }];
  const { agent } = await platform.client(AgentService).createAgent({ spec: { name: "looks", tools } });
  const look = [
    "env",
    "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'",
    `cat ${platform.dataDir}/*.key ${keyFile} 2>&1`,
    `echo ${CONTROL.secret} > control-file`,
    `CONTROL=${CONTROL.secret} setsid sh -c 'sleep 300; :' ${CONTROL.secret} > /dev/null 2>&1 &`,
  ].join("; ");
  const sessions = platform.client(SessionService);
  const { session } = await sessions.createSession({
    agentId: agent!.id,
    initialEvents: [message(`run: ${look}`)],
  });
  const sessionId = session!.id;
  await rested(sessionId);
  return sessionId;
}

const rested = (sessionId: string) =>
  eventually(
    async () => {
      const { session } = await platform.client(SessionService).getSession({ sessionId });
      return session!.status === SessionStatus.IDLE && !session!.hasWork;
    },
    { withinMs: 60_000 },
  );

/** Writes down what there is to see at each place; gives the paths to search. */
async function places(sessionIds: readonly string[]): Promise<Record<string, string[]>> {
  const found: Record<string, string[]> = {};
  const write = async (place: string, name: string, text: string) => {
    await mkdir(join(dir, place), { recursive: true });
    await writeFile(join(dir, place, name), text, "latin1");
    found[place] ??= [join(dir, place)];
  };
  for (const name of PROGRAMS) {
    const { pid } = platform.program(name);
    for (const each of [pid, ...descendantsOf(pid).map((process) => process.pid)]) {
      await write(`environ of ${name}`, String(each), readProc(each, "environ"));
      await write(`cmdline of ${name}`, String(each), readProc(each, "cmdline"));
    }
    const logs = everRan.filter((program) => program.name === name).map((program) => program.log());
    await write(`log of ${name}`, "log", logs.join(""));
  }
  for (const sessionId of sessionIds) {
    const { events } = await platform.client(SessionService).getEvents({ sessionId, limit: 1_000 });
    await write("events", sessionId, described(events));
  }
  await write(
    "audit",
    "entries",
    described(await platform.client(AdminService).listAuditEntries({ pageSize: 1_000 })),
  );
  await write("traces", "bodies", spans.bodies.join("\n"));
  await write("answers", "all", answers.join("\n"));
  const { rows: tables } = await postgres.pool.query<{ name: string }>(
    "select format('%I.%I', schemaname, tablename) as name from pg_tables where schemaname not in ('pg_catalog', 'information_schema')",
  );
  for (const { name } of tables) {
    const { rows } = await postgres.pool.query<{ row: string }>(`select t::text as row from ${name} t`);
    await write("tables", name, rows.map(({ row }) => row).join("\n"));
  }
  await postgres.pool.query("checkpoint");
  found["files of the database"] = [postgres.dataDir];
  found["disk of the hand agent"] = [join(platform.dataDir, "hand-agent")];
  return found;
}

test("R22: no secret is found anywhere, and the control is found everywhere", async () => {
  const admin = platform.client(AdminService);
  const { workspaces } = await admin.listWorkspaces({});
  const workspaceId = workspaces[0]!.id;
  const { secret } = await admin.createApiKey({ name: "client", role: Role.CLIENT, workspaceId });
  canaries.push({ name: "key of a client", secret }, { name: "key of the admin", secret: platform.adminKey });
  for (const name of ["harness", "proxy"]) {
    const text = await readFile(join(platform.dataDir, `${name}.key`), "utf8");
    canaries.push({ name: `key of the ${name}`, secret: text.trim() });
  }
  const deadUrl = `http://127.0.0.1:${await freePort()}/mcp`;
  const vaults = await fillVaults(deadUrl);
  const looking = lookAround();
  const received = new Set<string>();
  // An MCP server that repeats what it was sent.
  far.answers = (request, response, { id, method }) => {
    if (method !== "tools/call") return false;
    received.add(String(request.headers["x-key"] ?? request.headers.authorization).replace("Bearer ", ""));
    const text = JSON.stringify(request.headers);
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ jsonrpc: "2.0", id, result: { content: [{ type: "text", text }] } }));
    return true;
  };
  const servers = {
    good: far.url,
    header: `${far.url}/h`,
    oauth: oauth.mcpUrl,
    wrong: `${oauth.url}/wrong`,
    dead: deadUrl,
  };
  const held: Awaited<ReturnType<typeof heldSession>>[] = [];
  for (const vault of vaults) {
    const session = await heldSession({ ...servers, refused: "https://169.254.169.254/mcp" }, [vault]);
    held.push(session);
    for (const server of [...Object.keys(servers), "refused"]) {
      await told(session.call(server, await session.uses(server)));
    }
    await told(session.call("good", undefined, "wrong.token.here"));
  }
  // They were really used, and of both forms.
  expect(received).toEqual(
    new Set(canaries.filter(({ name }) => /^(bearer|header), /.test(name)).map(({ secret }) => secret)),
  );
  const before = far.calls("note");
  far.answers = () => true;
  const [session] = held;
  const toolUseId = await session!.uses("good");
  const cut = told(session!.call("good", toolUseId));
  await eventually(() => far.calls("note") === before + 1);
  expect(await platform.program("mcp-proxy").end("SIGKILL")).toBe("SIGKILL");
  await cut;
  far.answers = undefined;
  everRan.push(await platform.start("mcp-proxy"));
  expect(await told(session!.call("good", toolUseId))).toContain("OUTCOME_UNKNOWN");
  const lookedId = await looking;
  // Spans are handed over now and then, not at once.
  await eventually(() => spans.bodies.some((body) => body.includes(lookedId)));
  canaries.push(...oauth.secrets.map((token, n) => ({ name: `OAuth token ${n}`, secret: token })));
  const found = await places([lookedId, ...held.map(({ sessionId }) => sessionId)]);
  const sealingKeyId = (await platform.client(VaultService).getSealingKey({})).key!.keyId;
  const controls: Record<string, string> = {
    "log of server": spans.url,
    "log of mcp-proxy": sealingKeyId,
    "log of harness": spans.url,
    "log of hand-agent": platform.url,
    traces: lookedId,
    audit: session!.sessionId,
    answers: "authentication_error",
    ...Object.fromEntries(
      PROGRAMS.map((name) => [`cmdline of ${name}`, `dist/${name}.mjs`.padStart(16, "/")]),
    ),
    "cmdline of hand-agent": CONTROL.secret,
  };
  const noControl: string[] = [];
  for (const [place, paths] of Object.entries(found)) {
    expect({ place, hits: await searchFor(canaries, paths) }).toEqual({ place, hits: [] });
    const control = { name: "control", secret: controls[place] ?? CONTROL.secret };
    if ((await searchFor([control], paths)).length === 0) noControl.push(place);
  }
  expect(noControl).toEqual([]);
});

test("the search finds every form of a secret", async () => {
  const canary = newCanary("one", '+/"%a');
  for (const [form, text] of formsOf(canary.secret)) {
    const path = join(dir, "form");
    await writeFile(path, `before ${text} after`);
    expect([form, (await searchFor([canary], [path])).map(({ name }) => name)]).toEqual([form, ["one"]]);
  }
});
