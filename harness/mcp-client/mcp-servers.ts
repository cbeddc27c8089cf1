/** The MCP servers of one session: which tools they have, and calls of these (X1, X3). */
import { Backoff } from "../../kit/backoff.ts";
import { type Clock, within } from "../../kit/clock.ts";
import { failpoint } from "../../kit/failpoint.ts";
import type { Lease } from "../lease.ts";
import { type McpAddress, SessionRelay } from "../mcp-relay/session-relay.ts";
import { type ProxiedOutcome, runThroughProxy } from "../proxied-call.ts";
import type { OpenCall } from "../session-state.ts";
import type { SessionView } from "../session-view.ts";
import { McpProblem, originOfProblem } from "./mcp-problem.ts";
import { type McpOpening, McpServerClient, type McpTool, type ProxyAccess } from "./mcp-server-client.ts";
import type { SendToProxy } from "./proxy-request.ts";

export interface McpServersOptions {
  readonly proxyUrl: string;
  /** The agent's servers. */
  readonly names: readonly string[];
  readonly send: SendToProxy;
  readonly lease: Lease;
  readonly view: SessionView;
  readonly clock: Clock;
  /** Of the turn, for requests that are no call. */
  readonly traceHeaders: () => Readonly<Record<string, string>>;
}

export type ListedServer =
  | { readonly name: string; readonly tools: readonly McpTool[]; readonly opened: McpOpening }
  | { readonly name: string; readonly problem: McpProblem };

/** A dead or hanging server delays a turn by no more than this (R21 asks for less than 45 s). */
const LIST_WITHIN_MS = 35_000;
/** For a proxy that starts again, or has no room. */
const RETRY_FOR_MS = 25_000;
const RETRY = { firstMs: 100, maxMs: 3_000, resetAfterMs: Number.POSITIVE_INFINITY };
const CANCEL_WITHIN_MS = 3_000;
const UNKNOWN =
  "The connection to the platform's proxy broke while this call ran, so its outcome is not known: it may have run, in part or whole.";

export class McpServers {
  private readonly options: McpServersOptions;
  private readonly clients = new Map<string, McpServerClient>();
  private readonly relay: SessionRelay;

  constructor(options: McpServersOptions) {
    this.options = options;
    const { proxyUrl: url, lease, send, names } = options;
    const access = { url, sessionId: lease.sessionId, token: () => lease.sessionToken, send };
    this.relay = new SessionRelay({ access, names, held: lease.signal });
  }

  /** For clients of a loop's program. */
  addresses(): Promise<readonly McpAddress[]> {
    return this.relay.addresses();
  }

  /** All at once; none of them holds the others up. Rejects only with the signal's reason. */
  async list(names: readonly string[], signal: AbortSignal): Promise<ListedServer[]> {
    const listed = await Promise.all(names.map((name) => this.listOne(name, signal)));
    signal.throwIfAborted();
    return listed;
  }

  /** Resolves once the call has its result, or none can be had. Rejects with the signal's reason when that aborts. */
  async run(
    call: OpenCall,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<ProxiedOutcome> {
    const request = {
      toolUseId: call.eventId,
      name: call.name,
      inputText: call.input,
      inputSchema: this.tool(call)?.inputSchema ?? "{}",
    };
    const ended = await runThroughProxy(this.options, call, signal, () => {
      failpoint("harness.before_mcp_call");
      return this.client(call.server).callTool(request, signal, headers);
    });
    return ended === "answered" ? { kind: "answered" } : failed(ended.problem, ended.wasSent);
  }

  /** Ends a call; never rejects. Whether its result is to come by the log. */
  cancel(call: OpenCall): Promise<boolean> {
    const limit = new AbortController();
    const stop = this.options.clock.after(CANCEL_WITHIN_MS, () => limit.abort());
    const signal = AbortSignal.any([limit.signal, this.options.lease.signal]);
    return this.client(call.server).cancel(call.eventId, signal).finally(stop);
  }

  private async listOne(name: string, signal: AbortSignal): Promise<ListedServer> {
    const { clock } = this.options;
    const limit = new AbortController();
    const client = this.client(name);
    const asked = this.askForTools(client, AbortSignal.any([signal, limit.signal]));
    const late = () =>
      new McpProblem("mcp_connection_failed_error", `MCP server "${name}" did not answer in time`);
    try {
      const tools = await within(clock, LIST_WITHIN_MS, asked, late);
      return { name, tools, opened: client.opened };
    } catch (error) {
      return { name, problem: problemIn(error) };
    } finally {
      limit.abort();
      asked.catch(() => {});
    }
  }

  /** Again while that may help, as calls are sent: a turn is not to go without tools because a proxy starts again. */
  private async askForTools(client: McpServerClient, signal: AbortSignal): Promise<readonly McpTool[]> {
    const { clock, proxyUrl } = this.options;
    const backoff = new Backoff(clock, RETRY);
    const endsAtMs = clock.monotonicMs() + RETRY_FOR_MS;
    for (;;) {
      try {
        return await client.listTools(signal);
      } catch (error) {
        signal.throwIfAborted();
        const mayPass = proxyUrl !== "" && problemIn(error).mayPass;
        if (!mayPass || clock.monotonicMs() > endsAtMs) throw error;
        await clock.sleep(backoff.nextDelayMs(), signal);
      }
    }
  }

  /** As the log lists it. */
  private tool({ server, name }: OpenCall): McpTool | undefined {
    const known = this.options.view.state.mcpServers.get(server);
    return known?.tools?.find((tool) => tool.name === name);
  }

  private client(name: string): McpServerClient {
    const known = this.clients.get(name);
    if (known !== undefined) return known;
    const { proxyUrl: url, send, lease, view, traceHeaders } = this.options;
    const access: ProxyAccess = {
      url,
      sessionId: lease.sessionId,
      token: () => lease.sessionToken,
      traceHeaders,
      send,
    };
    // Of the holder before: what the MCP server keeps for its session goes on, too.
    const client = new McpServerClient(access, name, view.state.mcpServers.get(name)?.opened);
    this.clients.set(name, client);
    return client;
  }
}

function problemIn(error: unknown): McpProblem {
  if (error instanceof McpProblem) return error;
  return new McpProblem("proxy_unreachable", "the connection to the proxy broke", true);
}

function failed(problem: McpProblem, wasSent: boolean): ProxiedOutcome {
  if (wasSent) return { kind: "failed", text: UNKNOWN, part: "proxy", reason: "OUTCOME_UNKNOWN" };
  return {
    kind: "failed",
    text: `The tool could not be run: ${problem.message}.`,
    ...originOfProblem(problem),
  };
}
