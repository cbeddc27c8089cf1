/**
 * What a server writes to standard error, in the agent's own log: a bounded number of lines of bounded length, without the
 * values of variables that its configuration gives it. It goes nowhere else: not into results, not to the server.
 */
import type { Clock } from "../../../kit/clock.ts";
import type { Logger } from "../../../kit/log.ts";
import type { McpServerConfig } from "./server-config.ts";

const LINES_PER_PERIOD = 20;
const PERIOD_MS = 60_000;
const LINE_CHARS = 500;
/** Shorter ones are found in words that have nothing to do with them. */
const SECRET_CHARS = 6;
/** Of a line before it is given up: then what comes until its end is passed over. */
const HELD_CHARS = 8_192;

export class Diagnostics {
  private readonly options: { server: McpServerConfig; handId: string; clock: Clock; log: Logger };
  private readonly values: string[];
  private held = "";
  private isPassing = false;
  private periodStartMs = Number.NEGATIVE_INFINITY;
  private lines = 0;
  private unlogged = 0;

  constructor(options: { server: McpServerConfig; handId: string; clock: Clock; log: Logger }) {
    this.options = options;
    this.values = Object.values(options.server.env)
      .filter((value) => value.length >= SECRET_CHARS)
      .sort((a, b) => b.length - a.length);
  }

  push(chunk: Uint8Array): void {
    const lines = (this.held + Buffer.from(chunk).toString("utf8")).split("\n");
    this.held = lines.pop() ?? "";
    for (const line of lines) {
      if (!this.isPassing) this.note(line);
      this.isPassing = false;
    }
    if (this.held.length <= HELD_CHARS) return;
    if (!this.isPassing) this.note(this.held);
    this.isPassing = true;
    this.held = "";
  }

  private note(line: string): void {
    if (line.trim() === "") return;
    const { server, handId, clock, log } = this.options;
    if (clock.monotonicMs() - this.periodStartMs >= PERIOD_MS) {
      if (this.unlogged > 0)
        log.info({ mcp: server.name, hand: handId, count: this.unlogged }, "it wrote more");
      this.periodStartMs = clock.monotonicMs();
      this.lines = 0;
      this.unlogged = 0;
    }
    this.lines += 1;
    if (this.lines > LINES_PER_PERIOD) this.unlogged += 1;
    else log.info({ mcp: server.name, hand: handId }, `stderr: ${this.without(line).slice(0, LINE_CHARS)}`);
  }

  private without(line: string): string {
    return this.values.reduce((text, value) => text.replaceAll(value, "[hidden]"), line);
  }
}
