/** MCP servers in turns of loops that are programs: the built programs, a real proxy, and servers that count. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type CountingMcpServer, startCountingMcpServer } from "../kit/counting-mcp-server.ts";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { eventually } from "../kit/eventually.ts";
import { type FakeMessagesApi, startFakeMessagesApi, text, toolUse, turn } from "../kit/fake-messages-api.ts";
import { type ReferenceServer, startReferenceServer } from "../kit/mcp-reference/reference-server.ts";
import type { Platform } from "../kit/platform.ts";

const PROGRAM = fileURLToPath(new URL("../kit/mcp-loop-program.mjs", import.meta.url));
const WITHIN_MS = 120_000;
const TIMEOUT_MS = 300_000;

let api: FakeMessagesApi;
let platform: Platform;
let counting: CountingMcpServer;
let reference: ReferenceServer;
const place = mkdtempSync(join(tmpdir(), "loop-mcp-"));

beforeAll(async () => {
  counting = await startCountingMcpServer();
  reference = await startReferenceServer();
  api = await startFakeMessagesApi({
    script: ({ messages, tools = [] }) => {
      if (JSON.stringify(messages).includes('"tool_result"')) return turn([text("Noted.")]);
      const names = tools.map(({ name }) => String(name));
      return turn([toolUse(names.find((name) => name.endsWith("mcp__notes__note"))!, { text: "grüße" })]);
    },
  });
  const table = join(place, "loops.json");
  writeFileSync(table, JSON.stringify({ reader: { command: [process.execPath, PROGRAM] } }));
  platform = await startDatabasePlatform({
    programs: ["mcp-proxy", "harness"],
    env: {
      harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url, TENDON_EXTERNAL_LOOPS: table },
    },
  });
}, TIMEOUT_MS);
afterAll(async () => {
  await platform?.stop();
  await api?.stop();
  await counting?.stop();
  await reference?.stop();
  rmSync(place, { recursive: true, force: true });
});

async function talk(agent: object, url: string): Promise<string> {
  const value = { serverName: "notes", defaultPolicy: { permission: Permission.ALWAYS_ALLOW } };
  const spec = {
    name: "notes",
    model: { id: "claude-test" },
    mcpServers: [{ name: "notes", url }],
    tools: [{ kind: { case: "mcpToolset" as const, value } }],
    ...agent,
  };
  const { agent: made } = await platform.client(AgentService).createAgent({ spec });
  const payload = JSON.stringify({ content: [{ type: "text", text: "go" }] });
  const initialEvents = [{ type: "user.message", payload }];
  const { session } = await platform
    .client(SessionService)
    .createSession({ agentId: made!.id, initialEvents });
  return session!.id;
}

const idle = (sessionId: string) =>
  eventually(
    async () => {
      const { events } = await platform.client(SessionService).getEvents({ sessionId, limit: 1000 });
      return events.some(({ type }) => type === "session.status_idle") ? events : undefined;
    },
    { withinMs: WITHIN_MS },
  );
const payloads = (events: readonly Event[], type: string) =>
  events.filter((event) => event.type === type).map(({ payload }) => JSON.parse(payload));
const spoken = (events: readonly Event[]) =>
  payloads(events, "agent.message").map(({ content }) => content[0].text as string);

describe("the claude-code loop", () => {
  it.each([
    ["before its call was sent", "harness.before_mcp_call=kill"],
    ["when the call has its result and the model has not heard of it", "harness.appended=kill@4"],
  ])(
    "calls an MCP server's tool once and tells its model the recorded result, also where the harness dies %s (R1)",
    {
      timeout: TIMEOUT_MS,
    },
    async (_, failpoint) => {
      const [calls, asked] = [counting.calls("note"), api.requests.length];
      await platform.program("harness").end("SIGKILL");
      await platform.start("harness", { TENDON_FAILPOINTS: failpoint });
      const sessionId = await talk({ loop: "claude-code" }, counting.url);
      expect(await platform.program("harness").ended).toBe("SIGKILL");
      await platform.start("harness");
      const events = await idle(sessionId);
      expect(counting.calls("note")).toBe(calls + 1);
      expect(payloads(events, "agent.mcp_tool_use")).toMatchObject([
        { mcp_server_name: "notes", name: "note", input: { text: "grüße" } },
      ]);
      expect(payloads(events, "agent.mcp_tool_result")).toMatchObject([
        { content: [{ text: 'note {"text":"grüße"}' }], is_error: false },
      ]);
      expect(spoken(events)).toEqual(["Noted."]);
      const told = api.requests.slice(asked).map(({ json }) => JSON.stringify(json?.messages));
      expect(told.filter((messages) => messages.includes("note {"))).toHaveLength(1);
      expect(api.refusals).toEqual([]);
    },
  );
});

describe("a program of the external loop", () => {
  it("reaches the session's MCP servers with a client of its own and without a token, but for calls, while it is held", {
    timeout: TIMEOUT_MS,
  }, async () => {
    const before = reference.runs.get("test_simple_text");
    const agent = { loop: "external", loopSettings: JSON.stringify({ program: "reader" }) };
    const events = await idle(await talk(agent, reference.url));
    expect(payloads(events, "session.error")).toEqual([]);
    const { name, url, read, called, given } = JSON.parse(spoken(events)[0]!);
    expect([name, read]).toEqual(["notes", "This is the content of the static text resource."]);
    expect(called).toContain("tools are called as calls of the loop");
    expect(reference.runs.get("test_simple_text")).toBe(before);
    expect(url).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/[\w-]{43}\/notes$/);
    // No JWT, which is what a session token is.
    expect(given.replaceAll(url, "")).not.toMatch(/eyJ[\w-]{10}/);
    await eventually(() =>
      fetch(url).then(
        () => false,
        () => true,
      ),
    );
  });
});
