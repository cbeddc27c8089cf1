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
  readonly id: string;
  readonly sessionId: string;
  readonly serverName: string;
  readonly url: string;
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

  /** Throws where the id is another's. */
  find({ headers, caller, server }: Exchange): McpSession | undefined {
    const session = this.kept.get(headers[SESSION_HEADER] ?? "");
    if (session === undefined) return undefined;
    if (
      session.sessionId !== caller.sessionId ||
      session.serverName !== server.name ||
      session.url !== server.url
    ) {
      throw new McpRefusal(404, "not_found_error", "there is no such MCP session");
    }
    session.usedAtMs = this.clock.monotonicMs();
    return session;
  }

  /** The server has answered a client's `initialize` with this id. */
  opened({ caller, server, body, headers }: Exchange, id: string, grant: Grant | undefined): void {
    if (id.length > 1024 || this.kept.has(id)) return;
    const ofOne = [...this.kept.values()].filter(({ sessionId }) => sessionId === caller.sessionId);
    if (ofOne.length >= MAX_KEPT_OF_ONE) this.drop(ofOne[0]!);
    this.kept.set(id, {
      id,
      sessionId: caller.sessionId,
      serverName: server.name,
      url: server.url,
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
    this.kept.delete(session.id);
    this.close(session);
  }

  used({ headers }: Exchange, _usedId: string, grant: Grant | undefined): void {
    const session = this.kept.get(headers[SESSION_HEADER] ?? "");
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

  forget(id: string): void {
    this.kept.delete(id);
  }

  isKnown(id: string | undefined): boolean {
    return id !== undefined && this.kept.has(id);
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
    for (const { id } of found) this.kept.delete(id);
    return found;
  }
}
