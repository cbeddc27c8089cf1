/**
 * The driver of one MCP server that the agent's machine is configured with: each hand is a process of it.
 *
 * What is started is the configuration's alone. A hand's spec can say nothing of it: variables, files, limits and setup
 * commands are refused, as each of them could be turned into a command on this machine. The server runs as the agent's
 * user, with the machine's network; what its tools may do is up to it and to its arguments.
 */
import { randomBytes } from "node:crypto";
import { mkdir, mkdtemp, readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type { Clock } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import type { Logger } from "../../../kit/log.ts";
import {
  type DestroyReport,
  type Driver,
  type DriverCapabilities,
  type Hand,
  HandError,
  type HandSpec,
  type JsonValue,
  type ProbeResult,
  type ToolDefinition,
} from "../driver.ts";
import { McpHand } from "./mcp-hand.ts";
import { chooseTools, McpSession } from "./mcp-session.ts";
import type { McpServerConfig } from "./server-config.ts";
import { endLeftovers } from "./server-process.ts";

export interface McpDriverOptions {
  readonly server: McpServerConfig;
  readonly dataDir: string;
  readonly clock: Clock;
  readonly log: Logger;
}

const HAND_ID = /^[A-Za-z0-9_-]{1,80}$/;

export class McpDriver implements Driver {
  readonly name: string;
  readonly capabilities: DriverCapabilities = { park: true, limits: [], network: "host", ownTools: true };
  private readonly options: McpDriverOptions;
  /** Hands' own directories are below; what is there is a hand. */
  private readonly base: string;
  private readonly live = new Map<string, Promise<McpHand>>();
  private found: readonly ToolDefinition[] = [];

  constructor(options: McpDriverOptions) {
    this.options = options;
    this.name = `mcp-${options.server.name}`;
    this.base = join(resolve(options.dataDir), "mcp", options.server.name);
  }

  /** As the server named them when it was last tried. */
  get tools(): readonly ToolDefinition[] {
    return this.found;
  }

  async probe(): Promise<ProbeResult> {
    const { server, clock, log } = this.options;
    let handDir: string | undefined;
    try {
      handDir = await mkdtemp(join(tmpdir(), "tendon-mcp-"));
      const handId = `probe_${randomBytes(8).toString("hex")}`;
      const session = await McpSession.start({ server, handId, handDir, clock, log });
      try {
        this.found = chooseTools(await session.listTools(), server.tools);
      } finally {
        await session.process.end();
      }
      const detail = `the MCP server "${server.name}" with ${this.found.length} tools, run as the agent's user: what they may do is up to it`;
      return { available: true, isolation: "none", detail };
    } catch (error) {
      return { available: false, reason: messageOf(error) };
    } finally {
      if (handDir !== undefined) await rm(handDir, { recursive: true, force: true });
    }
  }

  async provision(spec: HandSpec, signal?: AbortSignal): Promise<Hand> {
    checkSpec(spec, this.name);
    const { handId } = spec;
    const living = this.live.get(handId);
    if (living !== undefined) return living;
    return this.keep(handId, async () => {
      const resumed = await isDirectory(this.dirOf(handId));
      signal?.throwIfAborted();
      try {
        await mkdir(this.dirOf(handId), { recursive: true, mode: 0o700 });
        await endLeftovers(this.options.server, handId, this.options.clock);
        const hand = this.handOf(handId, resumed);
        await hand.start(signal);
        return hand;
      } catch (error) {
        if (!resumed) await this.removeDir(handId);
        throw error;
      }
    });
  }

  async recover(handle: JsonValue): Promise<Hand | "gone"> {
    const { handId } = (handle ?? {}) as { handId?: unknown };
    if (typeof handId !== "string" || !HAND_ID.test(handId)) {
      throw new HandError(`not a handle of the driver ${this.name}`);
    }
    const living = this.live.get(handId);
    if (living !== undefined) return living;
    if (!(await isDirectory(this.dirOf(handId)))) return "gone";
    return this.keep(handId, async () => {
      await endLeftovers(this.options.server, handId, this.options.clock);
      return this.handOf(handId, true);
    });
  }

  async discard(handId: string): Promise<DestroyReport> {
    if (!HAND_ID.test(handId)) return { left: [] };
    const living = await this.live.get(handId)?.catch(() => undefined);
    if (living !== undefined) return living.destroy();
    if (!(await isDirectory(this.dirOf(handId)))) return { left: [] };
    const report = await endLeftovers(this.options.server, handId, this.options.clock);
    await this.removeDir(handId);
    return report;
  }

  async listHandIds(): Promise<string[]> {
    const names = await readdir(this.base).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return [];
      throw error;
    });
    return names.filter((name) => HAND_ID.test(name));
  }

  private handOf(handId: string, resumed: boolean): McpHand {
    const { server, clock, log } = this.options;
    return new McpHand({
      id: handId,
      server,
      dir: this.dirOf(handId),
      resumed,
      clock,
      log,
      onEnd: () => this.live.delete(handId),
      remove: () => this.removeDir(handId),
    });
  }

  private keep(handId: string, make: () => Promise<McpHand>): Promise<McpHand> {
    const making = make();
    this.live.set(handId, making);
    making.catch(() => {
      if (this.live.get(handId) === making) this.live.delete(handId);
    });
    return making;
  }

  private dirOf(handId: string): string {
    return join(this.base, handId);
  }

  private removeDir(handId: string): Promise<void> {
    return rm(this.dirOf(handId), { recursive: true, force: true });
  }
}

function checkSpec({ handId, env = {}, limits = {}, network, resources = [] }: HandSpec, name: string): void {
  if (!HAND_ID.test(handId)) throw new HandError("the hand's id is not usable as a directory name");
  const variables = Object.keys(env);
  const asked = [
    variables.length > 0 ? `no variables (${variables.slice(0, 4).join(", ")})` : undefined,
    resources.length > 0 ? "no files" : undefined,
    Object.keys(limits).length > 0 ? `no limits (${Object.keys(limits).join(", ")})` : undefined,
    network !== undefined && network.mode !== "unrestricted"
      ? `no network mode "${network.mode}"`
      : undefined,
  ].find((each) => each !== undefined);
  if (asked !== undefined) {
    throw new HandError(
      `hands of the driver ${name} take ${asked}: what runs is the configuration of its machine alone`,
    );
  }
}

async function isDirectory(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
    throw error;
  }
}
