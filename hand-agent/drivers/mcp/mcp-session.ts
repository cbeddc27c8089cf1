/**
 * One run of an MCP server, from its start to its end, spoken to by the handshake of MCP (2025-11-25 and what came before
 * it). Requests run side by side. Written here and not taken from a package: over one pipe to one process the protocol is
 * a page, and the packages that speak it would make the agent's one file a third larger.
 */
import { BUILD } from "../../../kit/build.ts";
import { type Clock, within } from "../../../kit/clock.ts";
import { HandError, type JsonValue, type ToolDefinition } from "../driver.ts";
import { ServerProcess, type ServerProcessOptions } from "./server-process.ts";

const VERSION = "2025-11-25";
const KNOWN_VERSIONS = new Set([VERSION, "2025-06-18", "2025-03-26", "2024-11-05"]);
/** From the start of the process until it has answered the handshake; package runners install first. */
const START_WITHIN_MS = 60_000;
const LIST_WITHIN_MS = 20_000;
/** As greetings allow. */
const MAX_TOOLS = 128;
const MAX_PAGES = 64;
const MAX_TOOLS_BYTES = 512 * 1024;
const MAX_DESCRIPTION_CHARS = 10_000;
const MAX_SCHEMA_CHARS = 65_536;
const TOOL_NAME = /^[A-Za-z0-9_-]{1,128}$/;
const METHOD_NOT_FOUND = -32_601;

/** The server answered that it did not do it. The text is the server's own. */
export class McpAnswerError extends Error {
  override readonly name = "McpAnswerError";
}

/** The process ended while something was asked of it. */
export class McpServerEnded extends Error {
  override readonly name = "McpServerEnded";
}

export interface Progress {
  readonly progress: number;
  readonly total?: number;
  readonly message?: string;
}

interface Waiting {
  readonly resolve: (result: Record<string, unknown>) => void;
  readonly reject: (error: Error) => void;
  readonly onProgress: ((progress: Progress) => void) | undefined;
}

/** A request that was sent. */
export interface Asked {
  readonly id: number;
  readonly answer: Promise<Record<string, unknown>>;
}

export type McpSessionOptions = Omit<ServerProcessOptions, "onMessage">;

export class McpSession {
  /** Why it ended, for people; undefined while it runs. */
  endReason: string | undefined;
  readonly process: ServerProcess;
  private readonly clock: Clock;
  private readonly waiting = new Map<number, Waiting>();
  private lastId = 0;

  private constructor(options: McpSessionOptions) {
    this.clock = options.clock;
    this.process = new ServerProcess({ ...options, onMessage: (message) => this.take(message) });
    void this.process.ended.then((why) => {
      this.endReason = why;
      for (const { reject } of this.waiting.values()) reject(new McpServerEnded(why));
      this.waiting.clear();
    });
  }

  /** Starts the server and speaks to it. Throws HandError; then nothing of it runs. */
  static async start(options: McpSessionOptions, signal?: AbortSignal): Promise<McpSession> {
    signal?.throwIfAborted();
    const session = new McpSession(options);
    try {
      await session.orAborted(
        within(options.clock, START_WITHIN_MS, session.greet(), late(START_WITHIN_MS)),
        signal,
      );
      return session;
    } catch (error) {
      await session.process.end();
      if (signal?.aborted) throw signal.reason;
      const why = error instanceof Error ? error.message : String(error);
      throw new HandError(`the MCP server "${options.server.name}" did not start: ${why}`, { cause: error });
    }
  }

  /** All tools, in the server's order. Throws HandError for a list that cannot be used. */
  async listTools(): Promise<ToolDefinition[]> {
    const tools: ToolDefinition[] = [];
    let cursor: unknown;
    let bytes = 0;
    for (let page = 0; page < MAX_PAGES; page += 1) {
      const asked = this.ask("tools/list", cursor === undefined ? {} : { cursor });
      const answer = await within(this.clock, LIST_WITHIN_MS, asked.answer, late(LIST_WITHIN_MS));
      for (const entry of Array.isArray(answer.tools) ? answer.tools : []) {
        const tool = toolOf(entry);
        bytes += Buffer.byteLength(tool.description) + JSON.stringify(tool.inputSchema).length;
        tools.push(tool);
      }
      if (bytes > MAX_TOOLS_BYTES)
        throw new HandError(`its tools' descriptions have more than ${MAX_TOOLS_BYTES} bytes`);
      cursor = answer.nextCursor;
      if (typeof cursor !== "string" || cursor === "") return tools;
    }
    throw new HandError(`its list of tools has more than ${MAX_PAGES} pages`);
  }

  callTool(
    name: string,
    input: Readonly<Record<string, unknown>>,
    onProgress: (progress: Progress) => void,
  ): Asked {
    return this.ask("tools/call", { name, arguments: input }, onProgress);
  }

  /** Tells the server that nobody wants the answer any more; it may come all the same. */
  cancel({ id }: Asked, reason: string): void {
    this.process.send({
      jsonrpc: "2.0",
      method: "notifications/cancelled",
      params: { requestId: id, reason },
    });
  }

  private async greet(): Promise<void> {
    const answer = await this.ask("initialize", {
      protocolVersion: VERSION,
      capabilities: {},
      clientInfo: { name: "tendon-hand-agent", version: BUILD },
    }).answer;
    if (!KNOWN_VERSIONS.has(String(answer.protocolVersion))) {
      throw new HandError(
        `it speaks the protocol version ${JSON.stringify(answer.protocolVersion)?.slice(0, 40)}`,
      );
    }
    const { tools } = (answer.capabilities ?? {}) as { tools?: unknown };
    if (tools === undefined) throw new HandError("it has no tools");
    this.process.send({ jsonrpc: "2.0", method: "notifications/initialized" });
  }

  private ask(
    method: string,
    params: Record<string, unknown>,
    onProgress?: (progress: Progress) => void,
  ): Asked {
    this.lastId += 1;
    const id = this.lastId;
    const answer = new Promise<Record<string, unknown>>((resolve, reject) => {
      if (this.endReason !== undefined) return reject(new McpServerEnded(this.endReason));
      this.waiting.set(id, { resolve, reject, onProgress });
      const meta = onProgress === undefined ? {} : { _meta: { progressToken: id } };
      this.process.send({ jsonrpc: "2.0", id, method, params: { ...params, ...meta } });
    });
    answer.catch(() => {}); // also when nobody waits any more
    return { id, answer };
  }

  private take(message: Record<string, unknown>): void {
    const { id, method } = message;
    if (typeof method === "string") {
      if (id === undefined) this.takeNotification(method, message.params);
      else this.answer(id, method);
      return;
    }
    const waiting = this.waiting.get(id as number);
    if (waiting === undefined) return;
    this.waiting.delete(id as number);
    const { error, result } = message;
    if (error !== undefined) waiting.reject(new McpAnswerError(errorText(error)));
    else
      waiting.resolve(
        typeof result === "object" && result !== null ? (result as Record<string, unknown>) : {},
      );
  }

  private takeNotification(method: string, params: unknown): void {
    if (method !== "notifications/progress" || typeof params !== "object" || params === null) return;
    const { progressToken, progress, total, message } = params as Record<string, unknown>;
    if (typeof progress !== "number") return;
    this.waiting.get(progressToken as number)?.onProgress?.({
      progress,
      ...(typeof total === "number" ? { total } : {}),
      ...(typeof message === "string" ? { message } : {}),
    });
  }

  /** Nothing is offered to servers: no files of this machine, no model, no person. */
  private answer(id: unknown, method: string): void {
    const error = { code: METHOD_NOT_FOUND, message: `this client has no ${method}` };
    this.process.send({ jsonrpc: "2.0", id, ...(method === "ping" ? { result: {} } : { error }) });
  }

  private orAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
    if (signal === undefined) return promise;
    promise.catch(() => {});
    return new Promise((resolve, reject) => {
      const abort = () => reject(signal.reason);
      signal.addEventListener("abort", abort, { once: true });
      promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
    });
  }
}

/** Those of the configuration, in the server's order; without a choice all. Throws HandError. */
export function chooseTools(
  tools: readonly ToolDefinition[],
  wanted: readonly string[] | undefined,
): ToolDefinition[] {
  const missing = wanted?.find((name) => !tools.some((tool) => tool.name === name));
  if (missing !== undefined)
    throw new HandError(`it has no tool "${missing}", which its configuration names`);
  const chosen = tools.filter(({ name }) => wanted?.includes(name) ?? true);
  if (chosen.length > MAX_TOOLS) {
    throw new HandError(
      `it has ${chosen.length} tools; name at most ${MAX_TOOLS} of them in its configuration`,
    );
  }
  for (const { name, inputSchema } of chosen) {
    if (!TOOL_NAME.test(name))
      throw new HandError(`the name of its tool ${JSON.stringify(name).slice(0, 140)} cannot be used`);
    const { length } = JSON.stringify(inputSchema);
    if (length > MAX_SCHEMA_CHARS)
      throw new HandError(`the schema of its tool "${name}" has ${length} characters`);
  }
  return chosen;
}

function toolOf(entry: unknown): ToolDefinition {
  const { name, description, inputSchema } = (entry ?? {}) as Record<string, unknown>;
  if (typeof name !== "string" || typeof inputSchema !== "object" || inputSchema === null) {
    throw new HandError("an entry of its list of tools has no name or no schema");
  }
  return {
    name,
    description: typeof description === "string" ? description.slice(0, MAX_DESCRIPTION_CHARS) : "",
    inputSchema: inputSchema as { readonly [name: string]: JsonValue },
  };
}

function errorText(error: unknown): string {
  const { code, message } = (error ?? {}) as Record<string, unknown>;
  const text = typeof message === "string" && message !== "" ? message : "no reason given";
  return typeof code === "number" ? `${text} (${code})` : text;
}

function late(ms: number): () => Error {
  return () => new HandError(`it did not answer within ${ms / 1_000} s`);
}
