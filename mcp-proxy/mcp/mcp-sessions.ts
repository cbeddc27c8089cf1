/**
 * MCP sessions that clients have opened through this proxy (the wire of 2025-11-25). A client keeps the id that it was given;
 * when the server forgets that session, another takes its place behind the same id, once, however many requests find out at
 * the same time. What is not known here is passed on as it is: a proxy that was started again stands in nobody's way.
 */
import type { Clock } from "../../kit/clock.ts";
import type { Grant } from "../credentials/credentials.ts";
import { McpRefusal } from "./refusal.ts";
import { type Exchange, SESSION_HEADER } from "./upstream.ts";

export interface McpSession {
  /** As its server has chosen it. */
  readonly id: string;
  readonly key: string;
  readonly sessionId: string;
  readonly serverName: string;
  readonly url: string;
  readonly pool: string | undefined;
  /** What it has upstream by now. */
  currentId: string;
  /** The client's `initialize`; undefined when it was too long to keep. */
  readonly opening: Buffer | undefined;
  protocolVersion: string;
  /** Kept for its end, when the session may use no credential any more. */
  grant: Grant | undefined;
  usedAtMs: number;
  renewal: Promise<string | undefined> | undefined;
}

const MAX_KEPT = 10_000;
const MAX_KEPT_OF_ONE = 64;
const MAX_OPENING_BYTES = 64 * 1024;
/** A client that has not come for so long does not come again. */
const KEPT_UNUSED_MS = 6 * 3_600_000;
const LOOK_EVERY_MS = 60_000;

export class McpSessions {
  private readonly clock: Clock;
  private readonly close: (session: McpSession) => void;
  private readonly kept = new Map<string, McpSession>();
  private readonly endings = new Map<string, Set<() => void>>();
  private readonly stopLooking: () => void;

  /** `close` ends one upstream; it does not reject. */
  constructor(clock: Clock, close: (session: McpSession) => void) {
    this.clock = clock;
    this.close = close;
    this.stopLooking = clock.every(LOOK_EVERY_MS, () => {
      for (const session of this.kept.values()) {
        if (session.usedAtMs + KEPT_UNUSED_MS <= clock.monotonicMs()) this.drop(session);
      }
    });
  }

  stop(): void {
    this.stopLooking();
  }

  /** Throws where the id is another's at the same server. Servers choose ids, and two of them may choose the same. */
  find(exchange: Exchange): McpSession | undefined {
    const id = exchange.headers[SESSION_HEADER] ?? "";
    if (id === "") return undefined;
    const session = this.kept.get(keyOf(exchange, id));
    if (session === undefined) {
      const isAnothers = [...this.kept.values()].some(
        (other) => other.id === id && (other.url === exchange.server.url || isOwn(other, exchange)),
      );
      if (isAnothers) throw new McpRefusal(404, "not_found_error", "there is no such MCP session");
      return undefined;
    }
    session.usedAtMs = this.clock.monotonicMs();
    return session;
  }

  /** The server has answered a client's `initialize` with this id. */
  opened(exchange: Exchange, id: string, grant: Grant | undefined): void {
    const { caller, server, body, headers } = exchange;
    const key = keyOf(exchange, id);
    if (id.length > 1024 || this.kept.has(key)) return;
    const ofOne = [...this.kept.values()].filter(({ sessionId }) => sessionId === caller.sessionId);
    if (ofOne.length >= MAX_KEPT_OF_ONE) this.drop(ofOne[0]!);
    this.kept.set(key, {
      id,
      key,
      sessionId: caller.sessionId,
      serverName: server.name,
      url: server.url,
      pool: server.pool,
      currentId: id,
      opening: body !== undefined && body.length <= MAX_OPENING_BYTES ? body : undefined,
      protocolVersion: headers["mcp-protocol-version"] ?? "",
      grant,
      usedAtMs: this.clock.monotonicMs(),
      renewal: undefined,
    });
    const oldest = this.kept.size > MAX_KEPT ? this.kept.values().next().value : undefined;
    if (oldest !== undefined) this.drop(oldest);
  }

  /** What is not kept any more is ended at its server, too: nobody else would. */
  private drop(session: McpSession): void {
    this.kept.delete(session.key);
    this.close(session);
  }

  used(exchange: Exchange, grant: Grant | undefined): void {
    const { headers } = exchange;
    const session = this.kept.get(keyOf(exchange, headers[SESSION_HEADER] ?? ""));
    if (session === undefined) return;
    session.grant = grant;
    session.protocolVersion = headers["mcp-protocol-version"] ?? session.protocolVersion;
  }

  /** The id that is good by now; undefined when the server gives no new one. `usedId` is the one that it did not know. */
  renew(
    session: McpSession,
    usedId: string,
    open: (opening: Buffer) => Promise<string | undefined>,
  ): Promise<string | undefined> {
    if (session.currentId !== usedId) return Promise.resolve(session.currentId);
    const { opening } = session;
    if (opening === undefined) return Promise.resolve(undefined);
    session.renewal ??= open(opening)
      .then((id) => {
        if (id !== undefined) session.currentId = id;
        return id;
      })
      .finally(() => {
        session.renewal = undefined;
      });
    return session.renewal;
  }

  /** The client has ended the one that it names. */
  forget(exchange: Exchange): void {
    this.kept.delete(keyOf(exchange, exchange.headers[SESSION_HEADER] ?? ""));
  }

  isKnown(exchange: Exchange): boolean {
    return this.kept.has(keyOf(exchange, exchange.headers[SESSION_HEADER] ?? ""));
  }

  /** Called when the Tendon session ends; the returned function calls it off. */
  onForget(sessionId: string, end: () => void): () => void {
    const ends = this.endings.get(sessionId) ?? new Set();
    this.endings.set(sessionId, ends.add(end));
    return () => {
      ends.delete(end);
      if (ends.size === 0) this.endings.delete(sessionId);
    };
  }

  /** All of a Tendon session, which has ended: what is open for it ends. */
  take(sessionId: string): McpSession[] {
    for (const end of this.endings.get(sessionId) ?? []) end();
    const found = [...this.kept.values()].filter((session) => session.sessionId === sessionId);
    for (const { key } of found) this.kept.delete(key);
    return found;
  }
}

/** An id means something together with whose it is and of which server alone. */
function keyOf({ caller, server }: Pick<Exchange, "caller" | "server">, id: string): string {
  return JSON.stringify([caller.sessionId, server.name, server.url, id]);
}

/** The agent has another URL under this name by now. */
function isOwn({ sessionId, serverName }: McpSession, { caller, server }: Exchange): boolean {
  return sessionId === caller.sessionId && serverName === server.name;
}
