/** MCP servers of sessions, reached through the proxy. */
import type { ServerResponse } from "node:http";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type CountingMcpServer, startCountingMcpServer } from "../kit/counting-mcp-server.ts";
import { eventually } from "../kit/eventually.ts";
import { freePort } from "../kit/free-port.ts";
import { type McpRig, SERVER, startMcpRig } from "../kit/mcp-rig.ts";
import { newSealingKeys, startProxy } from "../kit/proxy-rig.ts";
import { bearer } from "../kit/vault-rig.ts";

let rig: McpRig;
let far: CountingMcpServer;

beforeAll(async () => {
  rig = await startMcpRig();
});
afterAll(async () => {
  await rig?.stop();
});
beforeEach(async () => {
  far = await startCountingMcpServer();
});
afterEach(async () => {
  await far.stop();
});

const SECRET = "canary-mcp-token-1";
const newSession = (more: Partial<Parameters<McpRig["newSession"]>[0]> = {}) =>
  rig.newSession({ servers: { [SERVER]: far.url }, ...more });
const call = (name: string, input: object = {}, id: number | string = 1) => ({
  id,
  method: "tools/call",
  params: { name, arguments: input },
});
const errorOf = async (response: Response) =>
  ((await response.json()) as { error: { type: string; message: string; mcp_server_name?: string } }).error;
const json = async (response: Response) => (await response.json()) as Record<string, unknown>;

async function withVault() {
  const vaultId = await rig.vault.home.newVault();
  await rig.vault.home.addCredential(vaultId, bearer(far.url), SECRET);
  return newSession({ vaultIds: [vaultId] });
}

describe("who comes in", () => {
  test("needs a good token of the very session, of its newest brain, and a name that its agent has (S3, E1)", async () => {
    const session = await newSession();
    const other = await newSession();
    const statusOf = async (options: Parameters<typeof session.post>[1]) => {
      const response = await session.post({ id: 1, method: "ping" }, options);
      return [response.status, (await errorOf(response)).type];
    };
    expect(await statusOf({ token: "none" })).toEqual([401, "authentication_error"]);
    expect(await statusOf({ token: other.token })).toEqual([403, "permission_error"]);
    expect(await statusOf({ server: "nobody" })).toEqual([404, "not_found_error"]);
    await session.taken();
    expect(await statusOf({})).toEqual([409, "lease_fenced_error"]);
    expect(far.seen).toEqual([]);
  });

  test("sends its messages byte for byte with the session's credential, and nothing of its own token", async () => {
    const session = await withVault();
    const response = await session.post(call("note", { a: 1 }));
    expect(await json(response)).toMatchObject({ result: { content: [{ text: 'note {"a":1}' }] } });
    expect(far.headers.authorization).toBe(`Bearer ${SECRET}`);
    expect(JSON.stringify(far.headers)).not.toContain(session.token);
    const opens = await rig.vault.audit({ sessionId: session.id, action: "credential.open" });
    expect(opens.length).toBe(1);
  });

  test("calls no tool that its agent disables, however the message is written", async () => {
    const session = await newSession({ tools: { note: { disabled: true } } });
    expect(await json(await session.post(call("note")))).toMatchObject({
      error: { data: { reason: "TOOL_DISABLED" } },
    });
    const send = (body: string) =>
      fetch(`${rig.proxy.proxyUrl}/mcp/${session.id}/${encodeURIComponent(SERVER)}`, {
        method: "POST",
        headers: { authorization: `Bearer ${session.token}` },
        body,
      });
    const message = JSON.stringify({ jsonrpc: "2.0", ...call("note") });
    expect((await send(`[${message}]`)).status).toBe(400);
    expect((await send(message.replace('"params"', '"method":"ping","params"'))).status).toBe(400);
    expect((await send(message.replace('"name":"note"', '"name":"note","name":"look"'))).status).toBe(400);
    expect(far.seen).toEqual([]);
    expect((await session.post(call("look"))).status).toBe(200);
  });
});

describe("an MCP server that means harm", () => {
  test("and names its MCP session like another server's takes that from nobody", async () => {
    const other = await startCountingMcpServer();
    try {
      const id = "1";
      for (const server of [far, other]) {
        server.answers = (_request, response, message) => {
          if (message.method !== "initialize") return false;
          (server.openSessions as Set<string>).add(id);
          response.writeHead(200, { "content-type": "application/json", "mcp-session-id": id });
          response.end(JSON.stringify({ jsonrpc: "2.0", id: message.id, result: {} }));
          return true;
        };
      }
      const bad = await newSession();
      const good = await rig.newSession({ servers: { [SERVER]: other.url } });
      expect([await bad.open(), await good.open()]).toEqual([id, id]);
      for (const session of [bad, good]) {
        expect((await session.post(call("look"), { mcpSessionId: id })).status).toBe(200);
      }
      // Which is renewed for itself, too.
      other.forget();
      expect((await good.post(call("look"), { mcpSessionId: id })).status).toBe(200);
      expect(far.calls("look")).toBe(1);
    } finally {
      await other.stop();
    }
  });

  test("and names its MCP session like the secret that it was sent does not get it to the client (S2)", async () => {
    far.answers = (request, response, { id }) => {
      const sent = String(request.headers.authorization).replace("Bearer ", "");
      response.writeHead(200, { "content-type": "application/json", "mcp-session-id": `id-${sent}` });
      response.end(JSON.stringify({ jsonrpc: "2.0", id, result: {} }));
      return true;
    };
    const session = await withVault();
    const response = await session.post({ id: 0, method: "initialize", params: {} });
    const told = `${JSON.stringify([...response.headers])} ${await response.text()}`;
    expect(response.status).toBe(502);
    expect(told).not.toContain(SECRET);
  });
});

describe("a recorded call", () => {
  test("is in the log, and the use of its credential in the audit log, before a byte of the secret goes out (S5, X1)", async () => {
    const pool = rig.vault.database.pool();
    const session = await withVault();
    const toolUseId = await session.uses("note");
    const found: unknown[] = [];
    far.answers = (_request, response, { id }) => {
      const state = `select (select count(*)::integer from audit_entries where session_id = $1 and action = 'credential.open') as opened,
        (select count(*)::integer from mcp_calls where session_id = $1 and tool_use_id = $2 and result is null) as begun`;
      void pool.query(state, [session.id, toolUseId]).then(({ rows }) => {
        found.push(rows[0]);
        response.writeHead(200, { "content-type": "application/json" });
        response.end(JSON.stringify({ jsonrpc: "2.0", id, result: { content: [] } }));
      });
      return true;
    };
    expect((await session.post(call("note"), { toolUseId })).status).toBe(200);
    expect(found).toEqual([{ opened: 1, begun: 1 }]);
    expect(far.headers.authorization).toBe(`Bearer ${SECRET}`);
    // One that has its result opens nothing, and neither does one that the agent disables.
    expect((await session.post(call("note"), { toolUseId })).status).toBe(200);
    expect((await rig.vault.audit({ sessionId: session.id, action: "credential.open" })).length).toBe(1);
  });

  test("of a tool that the agent disables is not recorded, and opens no credential", async () => {
    const vaultId = await rig.vault.home.newVault();
    await rig.vault.home.addCredential(vaultId, bearer(far.url), SECRET);
    const session = await newSession({ tools: { note: { disabled: true } }, vaultIds: [vaultId] });
    const toolUseId = await session.uses("note");
    expect(await json(await session.post(call("note"), { toolUseId }))).toMatchObject({
      error: { data: { reason: "TOOL_DISABLED" } },
    });
    expect(far.seen).toEqual([]);
    expect(await rig.vault.audit({ sessionId: session.id, action: "credential.open" })).toEqual([]);
    const { rows } = await rig.vault.database
      .pool()
      .query("select 1 from mcp_calls where session_id = $1", [session.id]);
    expect(rows).toEqual([]);
  });

  test("runs once however often it is asked for, and its result is in the log once (X1, X3)", async () => {
    const session = await newSession();
    const toolUseId = await session.uses("note");
    const answers = await Promise.all(
      [1, "two", 3].map((id) => session.post(call("note", {}, id), { toolUseId })),
    );
    const again = await session.post(call("note", {}, 4), { toolUseId });
    const texts = await Promise.all([...answers, again].map((answer) => json(answer)));
    expect(texts.map(({ id }) => id)).toEqual([1, "two", 3, 4]);
    for (const { result } of texts) expect(result).toEqual({ content: [{ type: "text", text: "note {}" }] });
    expect(far.calls("note")).toBe(1);
    expect(await session.results()).toEqual([
      {
        mcp_tool_use_id: toolUseId,
        content: [{ type: "text", text: "note {}" }],
        is_error: false,
        upstream_ms: expect.any(Number),
      },
    ]);
  });

  test("goes on when its caller is gone, and whoever asks next gets what came of it (X2)", async () => {
    const session = await newSession();
    const toolUseId = await session.uses("note");
    const waiting: ServerResponse[] = [];
    far.answers = (_, response) => waiting.push(response) > 0;
    const gone = new AbortController();
    const first = session.post(call("note"), { toolUseId, signal: gone.signal }).catch(() => "gone");
    await eventually(() => waiting.length === 1);
    gone.abort();
    expect(await first).toBe("gone");
    const second = session.post(call("note", {}, 9), { toolUseId });
    waiting[0]!.writeHead(200, { "content-type": "application/json" });
    waiting[0]!.end('{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"a":1}}}');
    expect(await json(await second)).toMatchObject({ id: 9, result: { structuredContent: { a: 1 } } });
    expect(await session.results()).toMatchObject([{ content: [{ text: '{"a":1}' }] }]);
    expect(far.calls("note")).toBe(1);
  });

  test("whose sender is gone is sent again only if its tool says that this does no harm (X1)", async () => {
    const session = await newSession();
    const begin = (toolUseId: string) =>
      rig.vault.database
        .pool()
        .query("insert into mcp_calls (session_id, tool_use_id, epoch) values ($1, $2, 1)", [
          session.id,
          toolUseId,
        ]);
    for (const [tool, runs] of [
      ["note", 0],
      ["look", 1],
      ["set", 1],
    ] as const) {
      const toolUseId = await session.uses(tool);
      await begin(toolUseId);
      const { result } = await json(await session.post(call(tool), { toolUseId }));
      expect([tool, far.calls(tool)]).toEqual([tool, runs]);
      if (runs === 0) expect(JSON.stringify(result)).toContain("OUTCOME_UNKNOWN");
    }
    const [unknown, ...known] = await session.results();
    expect(unknown).toMatchObject({ is_error: true, failure: { part: "proxy", reason: "OUTCOME_UNKNOWN" } });
    expect(known.map(({ is_error }) => is_error)).toEqual([false, false]);
  });

  test("of an older brain, of another tool, without an id, or that the log does not have is not sent", async () => {
    const session = await newSession();
    const toolUseId = await session.uses("look");
    const status = async (message: object, id: string) =>
      (await session.post(message, { toolUseId: id })).status;
    expect(await status(call("note"), toolUseId)).toBe(400);
    expect(await status(call("note"), "sevt_none")).toBe(404);
    const { id: _, ...alone } = call("look");
    expect(await status(alone, toolUseId)).toBe(400);
    await session.taken();
    expect(await status(call("look"), toolUseId)).toBe(409);
    expect(far.seen).toEqual([]);
  });

  test("of a server that cannot be reached ends as an error that names server and part", async () => {
    const session = await newSession({ servers: { [SERVER]: `http://127.0.0.1:${await freePort()}/mcp` } });
    const toolUseId = await session.uses("note");
    const { result } = await json(await session.post(call("note"), { toolUseId }));
    expect(result).toMatchObject({
      isError: true,
      _meta: { "dev.tendon/failure": { type: "mcp_connection_failed_error", mcp_server_name: SERVER } },
    });
    expect(await session.results()).toMatchObject([
      { is_error: true, failure: { part: "upstream", reason: "MCP_CONNECTION_FAILED" } },
    ]);
    const other = await errorOf(await session.post({ id: 1, method: "tools/list" }));
    expect([other.type, other.mcp_server_name]).toEqual(["mcp_connection_failed_error", SERVER]);
  });

  test("passes on what comes before its result, and takes known values out of both", async () => {
    const session = await withVault();
    const toolUseId = await session.uses("note");
    far.answers = (_, response) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.write(
        `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"message":"${SECRET}"}}\n\n`,
      );
      const text = JSON.stringify(JSON.stringify({ token: SECRET }));
      response.end(
        `data: {"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":${text}}]}}\n\n`,
      );
      return true;
    };
    const answer = await session.post(call("note"), { toolUseId });
    const text = await answer.text();
    expect(answer.headers.get("content-type")).toBe("text/event-stream");
    expect(text).toContain('"message":"[redacted]"');
    expect(text).toContain('{\\"token\\":\\"[redacted]\\"}');
    expect(text + JSON.stringify(await session.results())).not.toContain(SECRET);
  });

  test("can be ended by its caller, and the log says so", async () => {
    const session = await newSession();
    const toolUseId = await session.uses("note");
    far.answers = () => true;
    const running = session.post(call("note"), { toolUseId });
    await eventually(() => far.calls("note") === 1);
    const ended = await fetch(`${rig.proxy.proxyUrl}/mcp/${session.id}/${encodeURIComponent(SERVER)}`, {
      method: "DELETE",
      headers: { authorization: `Bearer ${session.token}`, "tendon-tool-use-id": toolUseId },
    });
    expect(ended.status).toBe(202);
    expect(await json(await running)).toMatchObject({ result: { isError: true } });
    expect(await session.results()).toMatchObject([{ failure: { part: "client", reason: "CANCELLED" } }]);
  });
});

describe("an MCP session", () => {
  test("that its server forgets is opened again once, also under parallel calls, and each call runs once", async () => {
    const session = await newSession();
    const mcpSessionId = await session.open();
    far.forget();
    const ids = await Promise.all(Array.from({ length: 8 }, () => session.uses("note")));
    const answers = await Promise.all(
      ids.map((toolUseId) => session.post(call("note"), { toolUseId, mcpSessionId })),
    );
    for (const answer of answers)
      expect(await json(answer)).toMatchObject({ result: { content: [{ text: "note {}" }] } });
    expect(far.seen.filter((line) => line === "initialize").length).toBe(2);
    expect(far.calls("note")).toBe(8);
    expect((await session.results()).length).toBe(8);
  });

  test("is another session's only by its own id: a stranger's is not there", async () => {
    const [one, other] = [await newSession(), await newSession()];
    const mcpSessionId = await one.open();
    expect((await other.post({ id: 1, method: "ping" }, { mcpSessionId })).status).toBe(404);
    expect(far.seen).toEqual(["initialize"]);
  });

  test("ends upstream when its Tendon session is archived, with the credential that it had", async () => {
    const session = await withVault();
    await session.open();
    expect(far.openSessions.size).toBe(1);
    await rig.vault.home.sessions.archiveSession({ sessionId: session.id, interrupt: true });
    await eventually(() => far.openSessions.size === 0);
    expect(far.headers.authorization).toBe(`Bearer ${SECRET}`);
  });

  test("goes on through another proxy", async () => {
    const second = await startProxy({
      url: rig.vault.server.url,
      key: rig.vault.proxyKey,
      keys: await newSealingKeys(),
    });
    const session = await newSession();
    const mcpSessionId = await session.open();
    const answer = await session.post(call("note"), { mcpSessionId, proxyUrl: second.proxyUrl });
    expect(answer.status).toBe(200);
    await second.stop();
  });
});

test("a server that wants more scope than the credential has is told as that, with the scope, also in a recorded call", async () => {
  const session = await withVault();
  const wants = (scope: string) => {
    far.answers = (_, response) => {
      const challenge = `Bearer error="insufficient_scope", scope="${scope}", error_description="no"`;
      response.writeHead(403, { "www-authenticate": challenge }).end();
      return true;
    };
  };
  wants("files:read files:write");
  const error = await errorOf(await session.post({ id: 1, method: "tools/list" }));
  expect(error).toMatchObject({
    type: "mcp_authentication_failed_error",
    mcp_server_name: SERVER,
    missing_scope: "files:read files:write",
    message: expect.stringMatching(/wants more scope .*: files:read files:write; connect it again/),
  });
  const toolUseId = await session.uses("note");
  const call = { id: 2, method: "tools/call", params: { name: "note", arguments: {} } };
  const { result } = (await (await session.post(call, { toolUseId })).json()) as {
    result: { _meta: Record<string, unknown> };
  };
  expect(result._meta["dev.tendon/failure"]).toMatchObject({
    type: "mcp_authentication_failed_error",
    missing_scope: "files:read files:write",
  });
  wants(SECRET);
  expect(await errorOf(await session.post({ id: 3, method: "tools/list" }))).not.toHaveProperty(
    "missing_scope",
  );
});

test("a server that refuses the credential is told as that, with its name, and without a word of its own", async () => {
  const session = await withVault();
  far.answers = (_, response) => {
    response.writeHead(401, { "www-authenticate": `Bearer realm="${SECRET}"` }).end(SECRET);
    return true;
  };
  const response = await session.post({ id: 1, method: "tools/list" });
  const error = await errorOf(response);
  expect([response.status, error.type, error.mcp_server_name]).toEqual([
    502,
    "mcp_authentication_failed_error",
    SERVER,
  ]);
  expect(JSON.stringify([error, [...response.headers]])).not.toContain(SECRET);
});
