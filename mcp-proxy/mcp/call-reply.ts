/**
 * The answer to a recorded call: JSON when the result is there soon, else a stream of server-sent events, so that what comes
 * before the result is passed on and no client takes a quiet connection for a dead one.
 */
import { once } from "node:events";
import type { ServerResponse } from "node:http";
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import { McpRefusal, refusalOf } from "./refusal.ts";

const STREAM_AFTER_MS = 5_000;
const SIGN_OF_LIFE_EVERY_MS = 15_000;

export class CallReply {
  private readonly response: ServerResponse;
  private readonly clock: Clock;
  private readonly takesStream: boolean;
  private readonly idText: string;
  private streams = false;

  constructor(response: ServerResponse, clock: Clock, accept: string, idText: string) {
    this.response = response;
    this.clock = clock;
    this.takesStream = accept.includes("text/event-stream") || accept.includes("*/*");
    this.idText = idText;
  }

  /** An event that comes before the result; resolves when there is room for more. */
  async event(event: Buffer): Promise<void> {
    if (!this.takesStream || this.response.destroyed) return;
    this.startStream();
    if (this.response.write(event)) return;
    const left = new AbortController();
    const closed = once(this.response, "close", { signal: left.signal });
    const drained = once(this.response, "drain", { signal: left.signal });
    await Promise.race([closed, drained]).catch(() => {});
    left.abort();
    await Promise.allSettled([closed, drained]);
  }

  /** Rejects with what the call rejects with while nothing has been answered yet. */
  async follow(outcome: Promise<string>): Promise<void> {
    const stopWaiting = this.clock.after(STREAM_AFTER_MS, () => this.startStream());
    const stopBeating = this.clock.every(SIGN_OF_LIFE_EVERY_MS, () => {
      if (this.streams && !this.response.destroyed) this.response.write(": the call goes on\n\n");
    });
    try {
      this.finish(`"result":${await outcome}`);
    } catch (error) {
      if (!this.streams) throw error;
      const { message, type } = refusalOf(error, "") ?? new McpRefusal(500, "api_error", messageOf(error));
      this.finish(`"error":${JSON.stringify({ code: -32603, message, data: { type } })}`);
    } finally {
      stopWaiting();
      stopBeating();
    }
  }

  private startStream(): void {
    if (this.streams || !this.takesStream || this.response.headersSent || this.response.destroyed) return;
    this.streams = true;
    this.response.writeHead(200, {
      "content-type": "text/event-stream",
      "cache-control": "no-cache, no-transform",
    });
    this.response.flushHeaders();
  }

  private finish(member: string): void {
    if (this.response.destroyed) return;
    const message = `{"jsonrpc":"2.0","id":${this.idText},${member}}`;
    if (this.streams) {
      // JSON has no line breaks that matter; an event's data must have none.
      this.response.end(`event: message\ndata: ${message.replace(/[\r\n]+/g, " ")}\n\n`);
      return;
    }
    this.response.writeHead(200, { "content-type": "application/json" });
    this.response.end(message);
  }
}
