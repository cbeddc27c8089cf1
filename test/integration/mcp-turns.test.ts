/** Turns that use MCP servers: the built programs, a real proxy, and a server that counts. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type CountingMcpServer, startCountingMcpServer } from "../kit/counting-mcp-server.ts";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { eventually } from "../kit/eventually.ts";
import { type FakeMessagesApi, startFakeMessagesApi, text, toolUse, turn } from "../kit/fake-messages-api.ts";
import { freePort } from "../kit/free-port.ts";
import { startReferenceServer } from "../kit/mcp-reference/reference-server.ts";
import type { Platform } from "../kit/platform.ts";

let api: FakeMessagesApi;
let platform: Platform;
let mcp: CountingMcpServer;

beforeAll(async () => {
  mcp = await startCountingMcpServer();
  api = await startFakeMessagesApi({
    script: ({ messages, tools = [] }) => {
      const last = JSON.stringify(messages.at(-1));
      const names = tools.map(({ name }) => name);
      const wanted = [...last.matchAll(/call (\w+)/g)].map(([, name]) => name);
      if (wanted.length === 0 || last.includes("tool_result"))
        return turn([text(`Tools: ${names.join(" ")}.`)]);
      return turn(wanted.map((name) => toolUse(`mcp__notes__${name}`, { text: "grüße", n: 1 })));
    },
  });
  platform = await startDatabasePlatform({
    programs: ["mcp-proxy", "harness"],
    env: { harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url } },
  });
});

afterAll(async () => {
  await platform?.stop();
  await api?.stop();
  await mcp?.stop();
});

const FREE = { defaultPolicy: { permission: Permission.ALWAYS_ALLOW } };

async function talk(words: string, toolset: object = FREE, url = mcp.url): Promise<string> {
  const spec = {
    name: "notes",
    model: { id: "claude-test" },
    mcpServers: [{ name: "notes", url }],
    tools: [{ kind: { case: "mcpToolset" as const, value: { serverName: "notes", ...toolset } } }],
  };
  const { agent } = await platform.client(AgentService).createAgent({ spec });
  const { session } = await platform
    .client(SessionService)
    .createSession({ agentId: agent!.id, initialEvents: [said(words)] });
  return session!.id;
}

const said = (words: string) => ({
  type: "user.message",
  payload: JSON.stringify({ content: [{ type: "text", text: words }] }),
});

async function log(sessionId: string): Promise<Event[]> {
  return (await platform.client(SessionService).getEvents({ sessionId, limit: 1000 })).events;
}

async function idle(sessionId: string, times = 1): Promise<Event[]> {
  return eventually(
    async () => {
      const events = await log(sessionId);
      const idles = events.filter(({ type }) => type === "session.status_idle");
      return idles.length >= times ? events : undefined;
    },
    { withinMs: 60_000 },
  );
}

interface Payload {
  readonly mcp_tool_use_id?: string;
  readonly content: readonly { readonly text: string }[];
  readonly stop_reason: { readonly type: string };
  readonly evaluated_permission?: string;
}

const payloads = (events: readonly Event[], type: string) =>
  events.filter((event) => event.type === type).map(({ payload }) => JSON.parse(payload) as Payload);

describe("a turn with an MCP server", () => {
  it("offers its tools by the server's name, calls one through the proxy, and has the result in the log once (X3)", async () => {
    const before = mcp.calls("note");
    const events = await idle(await talk("call note"));
    expect(payloads(events, "agent.mcp_tool_use")).toMatchObject([
      {
        mcp_server_name: "notes",
        name: "note",
        input: { text: "grüße", n: 1 },
        evaluated_permission: "allow",
      },
    ]);
    const results = payloads(events, "agent.mcp_tool_result");
    expect(results).toMatchObject([{ is_error: false }]);
    expect(results[0]!.mcp_tool_use_id).toBe(events.find(({ type }) => type === "agent.mcp_tool_use")!.id);
    expect(mcp.calls("note")).toBe(before + 1);
    expect(payloads(events, "agent.message")[0]!.content[0]!.text).toBe(
      "Tools: mcp__notes__note mcp__notes__look mcp__notes__set.",
    );
    expect(payloads(events, "brain.tools_listed")).toMatchObject([
      { servers: [{ mcp_server_name: "notes", tools: ["note", "look", "set"] }] },
    ]);
  });

  it("asks for the tools once in a session and keeps its MCP session, whoever holds it later", async () => {
    const sessionId = await talk("hello");
    await idle(sessionId);
    const lists = mcp.seen.filter((line) => line === "tools/list").length;
    await platform.program("harness").end("SIGKILL");
    await platform.start("harness");
    const opened = mcp.openSessions.size;
    await platform.client(SessionService).emitEvents({ sessionId, events: [said("call look")] });
    const events = await idle(sessionId, 2);
    expect(payloads(events, "agent.mcp_tool_result")).toMatchObject([{ is_error: false }]);
    expect(mcp.openSessions.size).toBe(opened);
    // One that the server has forgotten meanwhile is opened anew, and the call runs all the same.
    mcp.forget();
    await platform.client(SessionService).emitEvents({ sessionId, events: [said("call look")] });
    const later = await idle(sessionId, 3);
    expect(payloads(later, "agent.mcp_tool_result")).toMatchObject([
      { is_error: false },
      { is_error: false },
    ]);
    expect(mcp.seen.filter((line) => line === "tools/list").length).toBe(lists);
  });

  it("works with a server that speaks only the newer wire, whoever holds it later", async () => {
    const newer = await startReferenceServer("newer");
    const sessionId = await talk("call test_simple_text", FREE, newer.url);
    await idle(sessionId);
    await platform.program("harness").end("SIGKILL");
    await platform.start("harness");
    const events = [said("call test_simple_text")];
    await platform.client(SessionService).emitEvents({ sessionId, events });
    const content = [{ text: "This is a simple text response for testing." }];
    const done = await idle(sessionId, 2);
    expect(payloads(done, "agent.mcp_tool_result")).toMatchObject([{ content }, { content }]);
    // Also with a tool among its list that no model API takes as its server writes it.
    expect(payloads(done, "session.error")).toEqual([]);
    expect(newer.runs.get("test_simple_text")).toBe(2);
    await newer.stop();
  });

  it("waits for a client's word where the agent says nothing else, and does not offer what is disabled", async () => {
    const before = mcp.calls("note");
    const sessionId = await talk("call note", { tools: { set: { disabled: true } } });
    const asked = await idle(sessionId);
    expect(payloads(asked, "session.status_idle")[0]!.stop_reason.type).toBe("requires_action");
    expect(payloads(asked, "agent.mcp_tool_use")[0]!.evaluated_permission).toBe("ask");
    expect(mcp.calls("note")).toBe(before);
    const id = asked.find(({ type }) => type === "agent.mcp_tool_use")!.id;
    const confirmation = JSON.stringify({ tool_use_id: id, result: "allow" });
    const events = [{ type: "user.tool_confirmation", payload: confirmation }];
    await platform.client(SessionService).emitEvents({ sessionId, events });
    const done = await idle(sessionId, 2);
    expect(payloads(done, "agent.mcp_tool_result")).toMatchObject([{ is_error: false }]);
    expect(mcp.calls("note")).toBe(before + 1);
    expect(payloads(done, "agent.message")[0]!.content[0]!.text).toBe(
      "Tools: mcp__notes__note mcp__notes__look.",
    );
  });

  it("says so once when a server is not there, and goes on without its tools (R21)", async () => {
    const port = await freePort();
    const sessionId = await talk("hello", FREE, `http://127.0.0.1:${port}/mcp`);
    const events = await idle(sessionId);
    expect(payloads(events, "session.error")).toMatchObject([
      {
        error: {
          type: "mcp_connection_failed_error",
          mcp_server_name: "notes",
          retry_status: { type: "retrying" },
          part: "upstream",
        },
      },
    ]);
    expect(payloads(events, "agent.message")[0]!.content[0]!.text).toBe("Tools: .");
  });

  it("says once in a turn that a server refuses calls whose tools it has told before", async () => {
    const sessionId = await talk("hello");
    await idle(sessionId);
    const say = async (words: string, idles: number) => {
      await platform.client(SessionService).emitEvents({ sessionId, events: [said(words)] });
      return idle(sessionId, idles);
    };
    mcp.answers = ({ headers }, response, { method }) => {
      if (headers["mcp-session-id"] === undefined || method !== "tools/call") return false;
      response.writeHead(401).end();
      return true;
    };
    const refused = await say("call note, call look", 2).finally(() => {
      mcp.answers = undefined;
    });
    const error = { type: "mcp_authentication_failed_error", mcp_server_name: "notes", part: "upstream" };
    expect(payloads(refused, "session.error")).toMatchObject([{ error }]);
    expect(payloads(refused, "agent.mcp_tool_result")).toMatchObject([
      { is_error: true },
      { is_error: true },
    ]);
    // Before the model hears of it.
    const types = refused.map(({ type }) => type);
    expect(types.indexOf("session.error")).toBe(types.lastIndexOf("span.model_request_start") - 1);
    const mended = await say("call note", 3);
    expect(payloads(mended, "agent.mcp_tool_result").at(-1)).toMatchObject({ is_error: false });
    expect(payloads(mended, "session.error")).toHaveLength(1);
  });

  it("runs a call once when the harness dies before it has heard the result (R1, X1)", async () => {
    const before = mcp.calls("note");
    await platform.program("harness").end("SIGKILL");
    await platform.start("harness", { TENDON_FAILPOINTS: "harness.before_mcp_call=kill" });
    const sessionId = await talk("call note");
    await platform.program("harness").ended;
    await platform.start("harness");
    const events = await idle(sessionId);
    expect(payloads(events, "agent.mcp_tool_result")).toHaveLength(1);
    expect(mcp.calls("note")).toBe(before + 1);
  });
});
