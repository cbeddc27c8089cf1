/**
 * R22: what stands in the memory of the programs while secrets are in use. The proxy is the control: there they are found.
 * The server is one that was started after they had been written, as most replicas are.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, test } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type CredentialUseSchema, VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { type Canary, canariesIn, newCanary, searchFor } from "../kit/canary-search.ts";
import { type CountingMcpServer, startCountingMcpServer } from "../kit/counting-mcp-server.ts";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { eventually } from "../kit/eventually.ts";
import { type FakeMessagesApi, startFakeMessagesApi, text, toolUse, turn } from "../kit/fake-messages-api.ts";
import { type GitServer, startGitServer } from "../kit/git-server.ts";
import type { Platform } from "../kit/platform.ts";
import { readMemory } from "../kit/process-memory.ts";
import { descendantsOf } from "../kit/process-tree.ts";
import { HOST, type RepeatingHost, startRepeatingHost } from "../kit/variable-rig.ts";

type Use = MessageInitShape<typeof CredentialUseSchema>;

/** What a user says goes through server, harness and hand agent: so it is seen that their memories are read. */
const SAID = newCanary("what a user said", "");
const BEARER = newCanary("bearer", "");
const HEADER = newCanary("header", "");
const GIT = newCanary("git token", "");
const VARIABLE = newCanary("variable", "");
const UNUSED = newCanary("git token that nobody has used", "");
const SECRETS: readonly Canary[] = [BEARER, HEADER, GIT, VARIABLE, UNUSED];

let far: CountingMcpServer;
let git: GitServer;
let repeating: RepeatingHost;
let api: FakeMessagesApi;
let platform: Platform;
let dir = "";
const received: string[] = [];

beforeAll(async () => {
  far = await startCountingMcpServer();
  // It repeats what it was sent, so that the secret is in what comes back, too.
  far.answers = (request, response, { id, method }) => {
    if (method !== "tools/call") return false;
    const sent = String(request.headers["x-key"] ?? request.headers.authorization);
    received.push(sent);
    const said = JSON.stringify(request.headers);
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ jsonrpc: "2.0", id, result: { content: [{ type: "text", text: said }] } }));
    return true;
  };
  [git, repeating] = await Promise.all([startGitServer(), startRepeatingHost()]);
  git.login = `bot:${GIT.secret}`;
  await git.addRepository("private/one");
  dir = await mkdtemp(join(tmpdir(), "tendon-canaries-memory-"));
  const upstreamCa = join(dir, "upstream.crt");
  const authorities = [git.caFile, repeating.certificates.caFile].map((file) => readFile(file, "utf8"));
  await writeFile(upstreamCa, (await Promise.all(authorities)).join("\n"));
  const inHand = [
    `echo ${SAID.secret}`,
    "cd one && git pull -q && git -c user.name=S -c user.email=s@example.com commit -q --allow-empty -m second",
    "git push -q && echo pushed",
    `curl -sS -H "authorization: Bearer $API_KEY" https://${HOST}:${repeating.port}/`,
    "sleep 300 & echo started",
  ];
  const steps = [
    toolUse("bash", { command: inHand.join("\n") }),
    toolUse("mcp__one__note", {}),
    toolUse("mcp__two__note", {}),
  ];
  api = await startFakeMessagesApi({ script: (_request, n) => turn([steps[n - 1] ?? text("done")]) });
  const control = { CONTROL: SAID.secret };
  platform = await startDatabasePlatform({
    programs: ["mcp-proxy", "harness", "hand-agent"],
    env: {
      // Also where nothing moves it: a control that is found whatever became of what was said.
      server: control,
      "mcp-proxy": { ...control, TENDON_PROXY_UPSTREAM_CA_FILE: upstreamCa },
      "hand-agent": control,
      harness: { ...control, ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url },
    },
  });
});
afterAll(async () => {
  await platform?.stop();
  await Promise.all([api?.stop(), far?.stop(), git?.stop(), repeating?.close()]);
  await rm(dir, { recursive: true, force: true });
});

async function fillVault(): Promise<string> {
  const vaults = platform.client(VaultService);
  const vaultId = (await vaults.createVault({ displayName: "a vault" })).vault!.id;
  const add = (use: Use, value: string, userName = "") =>
    vaults.createCredential({
      vaultId,
      use,
      secret: { form: { case: "plain", value: { value, userName } } },
    });
  await add({ kind: { case: "staticBearer", value: { serverUrl: far.url } } }, BEARER.secret);
  const header = { serverUrl: `${far.url}/two`, headerName: "x-key" };
  await add({ kind: { case: "header", value: header } }, HEADER.secret);
  await add({ kind: { case: "git", value: { url: "https://git.example.com" } } }, UNUSED.secret);
  const gitUse = { kind: { case: "git" as const, value: { url: `https://127.0.0.1:${git.port}/private` } } };
  await add(gitUse, GIT.secret, "bot");
  const variable = { name: "API_KEY", allowedHosts: [HOST], inHeaders: true };
  await add({ kind: { case: "environmentVariable", value: variable } }, VARIABLE.secret);
  return vaultId;
}

/** Gives the events of its session, as text. */
async function runTurn(vaultId: string): Promise<string> {
  const free = { defaultPolicy: { permission: Permission.ALWAYS_ALLOW } };
  const spec = {
    name: "uses them",
    model: { id: "claude-test" },
    mcpServers: [
      { name: "one", url: far.url },
      { name: "two", url: `${far.url}/two` },
    ],
    tools: [
      { kind: { case: "handToolset" as const, value: free } },
      ...["one", "two"].map((serverName) => ({
        kind: { case: "mcpToolset" as const, value: { serverName, ...free } },
      })),
    ],
  };
  const { agent } = await platform.client(AgentService).createAgent({ spec });
  const sealed = { name: "sealed", network: { mode: NetworkMode.NONE } };
  const { environment } = await platform.client(EnvironmentService).createEnvironment({ spec: sealed });
  const repository = { url: `https://127.0.0.1:${git.port}/private/one` };
  const sessions = platform.client(SessionService);
  const payload = JSON.stringify({ content: [{ type: "text", text: `use them, ${SAID.secret}` }] });
  const { session } = await sessions.createSession({
    agentId: agent!.id,
    environmentId: environment!.id,
    resources: [{ kind: { case: "gitRepository", value: repository } }],
    vaultIds: [vaultId],
    initialEvents: [{ type: "user.message", payload }],
  });
  const read = async () => (await sessions.getEvents({ sessionId: session!.id, limit: 1_000 })).events;
  await eventually(async () => (await read()).some(({ type }) => type === "session.status_idle"));
  return (await read()).map(({ type, payload }) => `${type} ${payload}`).join("\n");
}

/** Names of what stands in the memory of these processes. */
function namesIn(pids: readonly number[]): string[] {
  const found = new Set<string>();
  for (const pid of pids) {
    try {
      readMemory(pid, (piece) => {
        for (const name of canariesIn([SAID, ...SECRETS], piece)) found.add(name);
      });
    } catch (error) {
      // Of a program's children one may have ended by itself since they were listed.
      if (existsSync(`/proc/${pid}`)) throw error;
    }
  }
  return [...found].sort();
}

const namesOf = (text: Buffer) => [...canariesIn([SAID, ...SECRETS], text)].sort();

const programPids = (name: "server" | "harness" | "hand-agent" | "mcp-proxy") => {
  const { pid } = platform.program(name);
  return [pid, ...descendantsOf(pid).map((process) => process.pid)];
};

test("R22: no secret is in the memory of server, harness, hand agent and its sandbox while the proxy uses it", async () => {
  const vaultId = await fillVault();
  // Sealing happened in the one that took the write; whoever comes later has never seen a secret.
  await platform.program("server").end("SIGTERM");
  await platform.start("server");
  await eventually(
    async () => {
      const status = await platform.client(AdminService).getStatus({}, { deadlineMs: 5_000 });
      return status.harnesses.length > 0 && status.proxies.length > 0 && status.handAgentsOnline > 0;
    },
    { withinMs: 60_000 },
  );
  const events = await runTurn(vaultId);
  // All were really used: for tools, for cloning, pulling and pushing, and by a program in the sandbox.
  expect(received).toEqual([`Bearer ${BEARER.secret}`, HEADER.secret]);
  expect(events).toContain("pushed");
  expect(await git.git("private/one", "log", "-1", "--format=%s", "main")).toBe("second");
  expect(repeating.seen.map(({ headers }) => headers.authorization)).toEqual([`Bearer ${VARIABLE.secret}`]);
  expect(namesOf(Buffer.from(events))).toEqual([SAID.name]);
  for (const name of ["server", "mcp-proxy", "harness", "hand-agent"] as const) {
    expect({ name, found: namesOf(Buffer.from(platform.program(name).log())) }).toEqual({ name, found: [] });
  }
  const onDisk = await searchFor([SAID, ...SECRETS], [join(platform.dataDir, "hand-agent")]);
  expect(new Set(onDisk.map(({ name }) => name))).toEqual(new Set([SAID.name]));
  for (const name of ["harness", "hand-agent"] as const) {
    expect({ name, found: namesIn(programPids(name)) }).toEqual({ name, found: [SAID.name] });
  }
  // With the process that stays behind in the sandbox.
  expect(programPids("hand-agent").length).toBeGreaterThan(1);
  const { pid } = platform.program("server");
  expect(namesIn([pid])).toEqual([SAID.name]);
  const inProxy = namesIn(programPids("mcp-proxy"));
  const used = [BEARER, HEADER, GIT, VARIABLE].map(({ name }) => name);
  expect(inProxy).toEqual(expect.arrayContaining(used));
  // What no session has used the proxy has not opened, either.
  expect(inProxy).not.toContain(UNUSED.name);
});

test("a program that keeps a secret in any form, or has only let go of it, is found by the same search", async () => {
  const keeps = {
    plain: "kept = secret",
    "two bytes a character": "kept = '\u2192' + secret",
    base64: "kept = Buffer.from('Basic x:' + secret).toString('base64')",
    hex: "kept = Buffer.from(secret).toString('hex')",
    "in a buffer alone": "kept = Buffer.from(secret)",
    "let go of": "kept = Array.from({ length: 50 }, () => Buffer.from(secret)); kept = undefined",
  };
  for (const [how, does] of Object.entries(keeps)) {
    const canary = newCanary(how, "");
    const program = `let kept; process.stdin.once("data", (data) => {
      let secret = data.toString().trim(); data.fill(0); ${does}; secret = ""; console.log("done"); });
      setInterval(() => kept, 1000)`;
    const child = spawn(process.execPath, ["-e", program], { stdio: ["pipe", "pipe", "inherit"] });
    try {
      child.stdin.write(`${canary.secret}\n`);
      await once(child.stdout, "data");
      expect([how, findsIn(child, canary)]).toEqual([how, true]);
    } finally {
      child.kill("SIGKILL");
      await once(child, "exit");
    }
  }
});

function findsIn({ pid = 0 }: ChildProcess, canary: Canary): boolean {
  let isFound = false;
  readMemory(pid, (piece) => {
    isFound ||= canariesIn([canary], piece).size > 0;
  });
  return isFound;
}
