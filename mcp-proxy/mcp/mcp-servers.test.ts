import { create } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { NO_TRACING } from "../../kit/trace.ts";
import {
  type BeginCallRequestSchema,
  BeginCallResponseSchema,
  CallState,
  ResolveMcpServerResponseSchema,
} from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { resolveMcpServer } from "./mcp-servers.ts";

const caller = { sessionId: "sesn_1", workspaceId: "wrkspc_1", epoch: 2n };

/** The far side of the wire as servers of before had it: it knows nothing of credentials and calls here. */
function serverOfBefore(disabled: boolean) {
  const asked: unknown[] = [];
  return {
    asked,
    resolveMcpServer: async () =>
      create(ResolveMcpServerResponseSchema, {
        url: "https://mcp.example/mcp",
        toolset: { serverName: "far", defaultPolicy: { disabled } },
      }),
    beginCall: async (request: Parameters<typeof create<typeof BeginCallRequestSchema>>[1]) => {
      asked.push(request);
      return create(BeginCallResponseSchema, { state: CallState.BEGUN });
    },
  };
}

const request = { serverName: "far", toolName: "look", toolUseId: "sevt_1", withCredential: true };

describe("a server of the release before", () => {
  test("is asked for the credential by itself, and to record the call before it is sent (X1)", async () => {
    const server = serverOfBefore(false);
    const resolved = await resolveMcpServer(
      { credentials: server, tracing: NO_TRACING },
      caller,
      request,
      undefined,
    );
    expect(resolved.credential).toBeUndefined();
    expect(resolved.call?.state).toBe(CallState.BEGUN);
    expect(server.asked).toEqual([
      { sessionId: "sesn_1", toolUseId: "sevt_1", epoch: 2n, serverName: "far", toolName: "look" },
    ]);
  });

  test("records no call of a tool that the agent disables", async () => {
    const server = serverOfBefore(true);
    const resolved = await resolveMcpServer(
      { credentials: server, tracing: NO_TRACING },
      caller,
      request,
      undefined,
    );
    expect(resolved.server.allows("look")).toBe(false);
    expect(resolved.call).toBeUndefined();
    expect(server.asked).toEqual([]);
  });
});
