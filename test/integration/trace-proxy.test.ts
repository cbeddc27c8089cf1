/** What the proxy does for a turn, in the turn's trace and in its timeline: the built programs, with a credential that is renewed. */
import { timestampFromMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { timelineOf } from "../../cli/trace/timeline.ts";
import { Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { type CountingMcpServer, startCountingMcpServer } from "../kit/counting-mcp-server.ts";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { eventually } from "../kit/eventually.ts";
import { type FakeMessagesApi, startFakeMessagesApi, text, toolUse, turn } from "../kit/fake-messages-api.ts";
import { type OauthSide, startOauthSide } from "../kit/oauth-side.ts";
import type { Platform } from "../kit/platform.ts";
import { type ReceivedSpan, type SpanReceiver, startSpanReceiver } from "../kit/span-receiver.ts";

const TRACE = "6bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT_SPAN = "00f067aa0ba902b7";
const SAID = "marzipan-nobody-else-says";

let api: FakeMessagesApi;
let far: CountingMcpServer;
let oauth: OauthSide;
let receiver: SpanReceiver;
let platform: Platform;
let events: Event[] = [];
let secrets: readonly string[] = [];

beforeAll(async () => {
  [far, oauth, receiver] = await Promise.all([
    startCountingMcpServer(),
    startOauthSide(),
    startSpanReceiver(),
  ]);
  api = await startFakeMessagesApi({
    script: ({ messages }) =>
      JSON.stringify(messages.at(-1)).includes("tool_result")
        ? turn([text("done")])
        : turn([toolUse("mcp__notes__note", { text: SAID })]),
  });
  const env = { TENDON_OTLP_ENDPOINT: receiver.url };
  platform = await startDatabasePlatform({
    programs: ["mcp-proxy", "harness"],
    env: {
      server: env,
      "mcp-proxy": env,
      harness: { ...env, ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url },
    },
  });
  events = await runTurn(await vaultWithOldToken());
  secrets = oauth.secrets;
});
afterAll(async () => {
  await platform?.stop();
  await Promise.all([api?.stop(), far?.stop(), oauth?.close(), receiver?.stop()]);
});

/** Its token is over, and those that are made of it last less than they have to: each use asks for another. */
async function vaultWithOldToken(): Promise<string> {
  oauth.expiresInS = 30;
  const vaults = platform.client(VaultService);
  const vaultId = (await vaults.createVault({ displayName: "a vault" })).vault!.id;
  const { accessToken, refreshToken } = oauth.newGrant();
  const value = {
    serverUrl: far.url,
    tokenEndpoint: oauth.tokenUrl,
    clientId: "c",
    clientAuth: "client_secret_basic",
  };
  const clientSecret = "nobody-elses-client-secret";
  const secret = {
    value: accessToken,
    refreshToken,
    clientSecret,
    expiresAt: timestampFromMs(Date.now() - 1_000),
  };
  const form = { case: "plain" as const, value: secret };
  await vaults.createCredential({ vaultId, use: { kind: { case: "oauth", value } }, secret: { form } });
  return vaultId;
}

async function runTurn(vaultId: string): Promise<Event[]> {
  const free = { defaultPolicy: { permission: Permission.ALWAYS_ALLOW } };
  const spec = {
    name: "notes",
    model: { id: "claude-test" },
    mcpServers: [{ name: "notes", url: far.url }],
    tools: [{ kind: { case: "mcpToolset" as const, value: { serverName: "notes", ...free } } }],
  };
  const { agent } = await platform.client(AgentService).createAgent({ spec });
  const sessions = platform.client(SessionService);
  const { session } = await sessions.createSession({ agentId: agent!.id, vaultIds: [vaultId] });
  const sessionId = session!.id;
  const payload = JSON.stringify({ content: [{ type: "text", text: `note ${SAID}` }] });
  const headers = { traceparent: `00-${TRACE}-${CLIENT_SPAN}-01` };
  await sessions.emitEvents({ sessionId, events: [{ type: "user.message", payload }] }, { headers });
  return eventually(
    async () => {
      const { events: found } = await sessions.getEvents({ sessionId, limit: 1_000 });
      return found.some(({ type }) => type === "session.status_idle") ? found : undefined;
    },
    { withinMs: 60_000 },
  );
}

const ofTrace = () => receiver.spans.filter(({ traceId }) => traceId === TRACE);

function pathFrom(span: ReceivedSpan): string[] {
  const parent = ofTrace().find(({ spanId }) => spanId === span.parentSpanId);
  const here = `${span.service} ${span.name}`;
  return parent === undefined ? [here, span.parentSpanId] : [here, ...pathFrom(parent)];
}

/** Waits until it came, with all above it. */
const pathOf = (name: string, leaf: string) =>
  eventually(
    () =>
      ofTrace()
        .filter((span) => span.name === name && span.service === "tendon-mcp-proxy")
        .map(pathFrom)
        .find((path) => path.at(-1) === leaf && path.includes("tendon-harness tool call")),
    { withinMs: 60_000 },
  );

describe("a turn with an MCP server", () => {
  test("has what the proxy did in its trace: resolving, the request to the MCP server, storing the result", async () => {
    const above = [
      "tendon-mcp-proxy mcp request",
      "tendon-harness tool call",
      "tendon-harness turn",
      "tendon-server /tendon.v1.SessionService/EmitEvents",
      CLIENT_SPAN,
    ];
    for (const name of ["resolve", "upstream request", "store result"]) {
      expect(await pathOf(name, CLIENT_SPAN)).toEqual([`tendon-mcp-proxy ${name}`, ...above]);
    }
    const asked = await eventually(() =>
      ofTrace().find(({ name }) => name === "/tendon.v1.CredentialService/FinishCall"),
    );
    expect(pathFrom(asked).slice(1)).toEqual(["tendon-mcp-proxy store result", ...above]);
  });

  test("shows where it went and what was answered, and that a token was to be renewed", async () => {
    const named = (name: string) =>
      eventually(() => ofTrace().find((span) => span.name === name && !span.failed));
    expect((await named("upstream request")).attributes).toMatchObject({
      "server.address": new URL(far.url).host,
      "http.response.status_code": "200",
    });
    // Listing the tools, before the turn began, has renewed the token, which is nearly over again by now.
    expect(await pathOf("refresh", CLIENT_SPAN)).toContain("tendon-mcp-proxy mcp request");
    expect((await named("refresh")).attributes["tendon.refresh.outcome"]).toMatch(/^(newer|none)$/);
  });

  test("says nothing that anybody said, and no secret, in any span", () => {
    expect(receiver.bodies.length).toBeGreaterThan(0);
    expect(secrets.length).toBeGreaterThan(2);
    for (const word of [SAID, ...secrets]) {
      expect(receiver.bodies.filter((body) => body.includes(word)).length).toBe(0);
    }
  });

  test("has the proxy as a part with its own time in `tendon session trace`, beside the MCP server", () => {
    const log = events.map(({ position, id, type, payload, createdAt }) => ({
      ...{ position: Number(position), id, type, payload },
      atMs: timestampMs(createdAt!),
    }));
    const { steps } = timelineOf(log);
    const [proxy, upstream] = ["proxy", "upstream"].map((part) => steps.find((step) => step.part === part));
    expect(proxy).toMatchObject({ what: "passes the call on" });
    expect(upstream).toMatchObject({ what: "note", startMs: proxy!.endMs });
    expect(proxy!.endMs! >= proxy!.startMs).toBe(true);
    expect(upstream!.from).toBe(proxy!.from);
  });
});
