/** R1 for calls of MCP servers: a server that counts, and a proxy or a server that dies around the call. */
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { armFailpoints, type FailpointName } from "../../kit/failpoint.ts";
import { createLogger } from "../../kit/log.ts";
import { type CountingMcpServer, startCountingMcpServer } from "../kit/counting-mcp-server.ts";
import { eventually } from "../kit/eventually.ts";
import { isWholeRun } from "../kit/fault-trials.ts";
import { type McpRig, type McpSessionOfTest, SERVER, startMcpRig } from "../kit/mcp-rig.ts";
import { startProgram } from "../kit/program.ts";
import { promised } from "../kit/promised.ts";
import { addressOfProxy } from "../kit/proxy-address.ts";

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

const call = (name: string) => ({ id: 1, method: "tools/call", params: { name, arguments: {} } });
const newSession = () => rig.newSession({ servers: { [SERVER]: far.url } });

/** As the next brain does it: again and again, until there is an answer. */
const resultOf = (session: McpSessionOfTest, tool: string, toolUseId: string) =>
  eventually(async () => {
    const response = await session.post(call(tool), { toolUseId }).catch(() => undefined);
    return response?.ok === true
      ? ((await response.json()) as { result: { isError?: boolean } }).result
      : undefined;
  });

describe("a proxy that is killed", () => {
  // How often the tool has run in the end, if it may not and if it may be run again.
  test.for<[point: FailpointName, once: number, again: number]>([
    ["proxy.mcp_call_begun", 0, 1],
    ["proxy.mcp_answered", 1, 2],
  ])(
    "at %s has its call run at most once, and again only where that does no harm (R1, X1)",
    async ([point, once, again]) => {
      for (const [tool, runs] of [
        ["note", once],
        ["look", again],
      ] as const) {
        const session = await newSession();
        const toolUseId = await session.uses(tool);
        const { dataDir, url } = rig.vault.server;
        const dying = startProgram("mcp-proxy", {
          TENDON_URL: url,
          TENDON_PROXY_KEY_FILE: join(dataDir, "proxy.key"),
          TENDON_PROXY_SEALING_KEY_FILE: join(dataDir, "proxy-sealing.key"),
          TENDON_PROXY_PORT: "0",
          TENDON_FAILPOINTS: `${point}=kill`,
        });
        const proxyUrl = await addressOfProxy(dying);
        await session.post(call(tool), { toolUseId, proxyUrl }).catch(() => undefined);
        expect(await dying.ended).toBe("SIGKILL");
        const result = await resultOf(session, tool, toolUseId);
        expect([tool, far.calls(tool), result.isError === true]).toEqual([tool, runs, tool === "note"]);
        expect(await session.results()).toMatchObject([
          { mcp_tool_use_id: toolUseId, is_error: tool === "note" },
        ]);
      }
    },
  );
});

describe("a server whose word is lost", () => {
  test.for<[point: FailpointName, runs: number, isError: boolean]>([
    ["server.mcp_call_begun", 0, true],
    ["server.mcp_result_stored", 1, false],
  ])(
    "at %s has the call run at most once, with one result in the log (R1, X3)",
    async ([point, runs, isError]) => {
      const session = await newSession();
      const toolUseId = await session.uses("note");
      armFailpoints(`${point}=error`, createLogger("test", "silent"));
      expect((await session.post(call("note"), { toolUseId })).ok).toBe(false);
      armFailpoints(undefined, createLogger("test", "silent"));
      const result = await resultOf(session, "note", toolUseId);
      expect([far.calls("note"), result.isError === true]).toEqual([runs, isError]);
      expect(await session.results()).toMatchObject([{ is_error: isError }]);
    },
  );
});

// Half a minute of waiting: in the whole run alone.
test.runIf(isWholeRun)(
  "a server that hangs in the middle of a call is told within 45 s, and others are not held up by it",
  async () => {
    const other = await startCountingMcpServer();
    const session = await rig.newSession({ servers: { [SERVER]: far.url, other: other.url } });
    const toolUseId = await session.uses("note");
    far.answers = () => true;
    const startedMs = performance.now();
    const hanging = session.post(call("note"), { toolUseId });
    await eventually(() => far.calls("note") === 1);
    expect((await session.post(call("note"), { server: "other" })).status).toBe(200);
    const text = await (await hanging).text();
    expect(performance.now() - startedMs).toBeLessThan(promised(45_000));
    expect(text).toContain("mcp_connection_failed_error");
    expect(await session.results()).toMatchObject([
      { is_error: true, failure: { part: "upstream", reason: "MCP_CONNECTION_FAILED" } },
    ]);
    await other.stop();
  },
);
