/**
 * The proxy's ends of tunnels that the server asks for. Each becomes a SandboxConnection and goes to the handler of its
 * kind; what no handler is there for is refused, and the program in the sandbox is told.
 */
import { messageOf, TendonError } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { openTunnel, type TunnelStream } from "../../kit/tunnel/tunnel-stream.ts";
import { TunnelKind } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { AskTunnel, ProxyService } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { ConnectionHandler, SandboxConnectionKind } from "./sandbox-connection.ts";

/** Fewer than a connection to the server carries streams. */
const MAX_OPEN = 1_500;
/** So that the hands of one leave room for those of the others. */
const MAX_OPEN_OF_WORKSPACE = 1_000;

const KINDS = new Map<TunnelKind, SandboxConnectionKind>([
  [TunnelKind.GIT, "git"],
  [TunnelKind.EGRESS, "egress"],
]);

export interface TunnelsDeps {
  readonly client: Pick<Client<typeof ProxyService>, "openTunnel">;
  /** By kind; without one, such connections are refused. */
  readonly handlers: Partial<Readonly<Record<SandboxConnectionKind, ConnectionHandler>>>;
  readonly log: Logger;
}

/** What the server is told at once: an empty reason, or why not. */
export interface TunnelAnswer {
  readonly reason: string;
  readonly message: string;
}

export class Tunnels {
  private readonly deps: TunnelsDeps;
  private readonly stopping = new AbortController();
  /** By their session; those that are being opened count too. */
  private readonly open = new Map<
    string,
    { sessionId: string; workspaceId: string; stop: AbortController }
  >();

  constructor(deps: TunnelsDeps) {
    this.deps = deps;
  }

  get size(): number {
    return this.open.size;
  }

  /** The answer comes before the stream: a refusal needs none. Never throws. */
  asked(ask: AskTunnel): TunnelAnswer {
    const kind = KINDS.get(ask.kind);
    const handler = kind === undefined ? undefined : this.deps.handlers[kind];
    if (kind === undefined || handler === undefined)
      return {
        reason: "NOT_CONFIGURED",
        message: `this proxy takes no connections of the kind ${kind ?? ask.kind}`,
      };
    if (this.stopping.signal.aborted)
      return { reason: "DRAINING", message: "the proxy stops; connect again" };
    if (this.open.size >= MAX_OPEN)
      return { reason: "LIMIT_EXCEEDED", message: `the proxy has ${MAX_OPEN} connections of sandboxes open` };
    if (this.openOf(ask.workspaceId) >= MAX_OPEN_OF_WORKSPACE)
      return {
        reason: "LIMIT_EXCEEDED",
        message: `this workspace has ${MAX_OPEN_OF_WORKSPACE} connections of sandboxes open at the proxy`,
      };
    void this.take(ask, kind, handler);
    return { reason: "", message: "" };
  }

  private openOf(workspaceId: string): number {
    let open = 0;
    for (const each of this.open.values()) if (each.workspaceId === workspaceId) open += 1;
    return open;
  }

  /** The session ended: its connections do. */
  forgetSession(sessionId: string): void {
    const ended = new TendonError("SESSION_ARCHIVED", "the session has ended");
    for (const each of this.open.values()) if (each.sessionId === sessionId) each.stop.abort(ended);
  }

  stop(): void {
    const stopped = new TendonError("DRAINING", "the proxy stops");
    this.stopping.abort(stopped);
    for (const { stop } of this.open.values()) stop.abort(stopped);
  }

  private async take(ask: AskTunnel, kind: SandboxConnectionKind, handler: ConnectionHandler): Promise<void> {
    const { tunnelId, sessionId, workspaceId, handId, host, port, variables, repositories } = ask;
    const stop = new AbortController();
    this.open.set(tunnelId, { sessionId, workspaceId, stop });
    const gone = () => this.open.delete(tunnelId);
    let stream: TunnelStream | undefined;
    try {
      stream = await openTunnel(this.deps.client.openTunnel({ signal: stop.signal }), { tunnelId });
      stream.once("close", gone);
      // The handler may put a listener of its own beside it; a connection that breaks is no failure of the proxy.
      stream.on("error", () => {});
      const epoch = Number(ask.epoch);
      handler({
        tunnelId,
        sessionId,
        workspaceId,
        epoch,
        handId,
        kind,
        host,
        port,
        variables,
        repositories,
        stream,
      });
    } catch (error) {
      this.deps.log.warn({ tunnelId, sessionId, kind, error: messageOf(error) }, "a tunnel was not taken");
      if (stream === undefined) gone();
      else stream.destroy();
    }
  }
}
