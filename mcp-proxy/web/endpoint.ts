/**
 * `/web/{session}/{tool use}`: POST runs the call of a web tool that the session's log has under this event id, and is answered
 * once its result stands in the log; DELETE ends it. What is called and with which input the log says, not the request.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import { parseTraceParent, TRACE_HEADER, type Tracing } from "../../kit/trace.ts";
import { authenticate } from "../authenticate.ts";
import { McpRefusal, refusalOf } from "../mcp/refusal.ts";
import type { SessionTokenKeys } from "../session-token.ts";
import { step } from "../trace-steps.ts";
import type { WebCalls } from "./web-calls.ts";

export interface WebEndpointDeps {
  readonly keys: Pick<SessionTokenKeys, "verify">;
  readonly calls: WebCalls;
  readonly log: Logger;
  readonly tracing: Tracing;
}

export class WebEndpoint {
  private readonly deps: WebEndpointDeps;

  constructor(deps: WebEndpointDeps) {
    this.deps = deps;
  }

  /** Does not reject. */
  async handle(request: IncomingMessage, response: ServerResponse, path: string): Promise<void> {
    // There is nothing to read in it.
    request.resume();
    try {
      const { sessionId, toolUseId } = placeOf(path);
      const caller = await authenticate(this.deps.keys, request, sessionId);
      if (request.method === "DELETE") {
        answer(response, this.deps.calls.cancel(caller, toolUseId) ? 202 : 404, {});
        return;
      }
      if (request.method !== "POST")
        throw new McpRefusal(405, "invalid_request_error", "web tools take POST and DELETE");
      const header = request.headers[TRACE_HEADER];
      const parent = parseTraceParent(typeof header === "string" ? header : undefined);
      const attributes = { "tendon.session_id": sessionId, "tendon.tool_use_id": toolUseId };
      await step(this.deps.tracing, "web call", { parent, kind: "server", attributes }, ({ context }) =>
        this.deps.calls.run({ caller, toolUseId, trace: context }),
      );
      answer(response, 200, {});
    } catch (error) {
      this.refuse(response, error);
    }
  }

  private refuse(response: ServerResponse, error: unknown): void {
    const refusal = refusalOf(error, "");
    if (refusal === undefined)
      this.deps.log.error({ error: messageOf(error) }, "a request for a web tool failed");
    const { status, type, message } = refusal ?? new McpRefusal(500, "api_error", "the proxy failed");
    answer(response, status, { type: "error", error: { type, message } });
  }
}

function placeOf(path: string): { sessionId: string; toolUseId: string } {
  const [, , sessionId = "", toolUseId = "", ...more] = path.split("/");
  if (sessionId === "" || toolUseId === "" || toolUseId.length > 128 || more.length > 0)
    throw new McpRefusal(404, "not_found_error", "calls of web tools are at /web/{session}/{tool use}");
  return { sessionId, toolUseId };
}

function answer(response: ServerResponse, status: number, body: object): void {
  if (response.destroyed) return;
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(body));
}
