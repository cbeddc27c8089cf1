/** The drivers of this agent. A new driver is one folder and one line here. */
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import type { Clock } from "../../kit/clock.ts";
import type { Logger } from "../../kit/log.ts";
import type { Relays } from "../relay/relay.ts";
import { DockerDriver } from "./docker/docker-driver.ts";
import type { EngineSettings } from "./docker/engine-address.ts";
import type { RegistryAuthOptions } from "./docker/registry-credentials.ts";
import type { Driver, ToolDefinition } from "./driver.ts";
import { McpDriver } from "./mcp/mcp-driver.ts";
import type { McpServerConfig } from "./mcp/server-config.ts";
import type { IsolationMode } from "./process/isolation.ts";
import { ProcessDriver } from "./process/process-driver.ts";
import { Script } from "./scripted/script.ts";
import { ScriptedDriver } from "./scripted/scripted-driver.ts";

export interface DriverOptions {
  readonly dataDir: string;
  readonly clock: Clock;
  readonly log: Logger;
  /** The tools that hands with processes and files get. */
  readonly tools: readonly ToolDefinition[];
  /** The ways out of hands whose network is limited; without it, such hands are refused. */
  readonly relays?: Relays;
  readonly process: {
    readonly isolation?: "auto" | IsolationMode;
    readonly hiddenPaths?: readonly string[];
    /** The hands' PATH. */
    readonly path?: string;
  };
  /** Without it, no engine is looked for. */
  readonly docker?: {
    readonly engine: EngineSettings;
    readonly registryAuth?: RegistryAuthOptions;
    /** That the agent belongs to; empty before it has joined one. */
    readonly installationId: () => string;
  };
  /** MCP servers of this machine, each of which becomes a driver. */
  readonly mcp?: readonly McpServerConfig[];
}

export const DRIVERS = {
  process: ({ process, docker: _, mcp: _mcp, ...rest }) => new ProcessDriver({ ...rest, ...process }),
  docker: ({ docker, process: _, mcp: _mcp, ...rest }) => docker && new DockerDriver({ ...rest, ...docker }),
  mcp: ({ mcp = [], dataDir, clock, log }) =>
    mcp.map((server) => new McpDriver({ server, dataDir, clock, log })),
} satisfies Readonly<Record<string, (options: DriverOptions) => Driver | readonly Driver[] | undefined>>;

/** The drivers of this agent; with the path of a script, which only tests have, also one that fails as that says. */
export function makeDrivers(options: DriverOptions, scriptPath?: string): Driver[] {
  const drivers: Driver[] = Object.values(DRIVERS).flatMap(
    (make: (options: DriverOptions) => Driver | readonly Driver[] | undefined) => make(options) ?? [],
  );
  if (scriptPath === undefined) return drivers;
  const inner = DRIVERS.process({ ...options, dataDir: scriptedDir(options.dataDir) });
  return [...drivers, new ScriptedDriver({ inner, script: Script.ofFile(scriptPath), clock: options.clock })];
}

/** Apart from the process driver's own hands. Its users pass, as they do through the data directory. */
function scriptedDir(dataDir: string): string {
  const path = join(dataDir, "scripted");
  mkdirSync(path, { recursive: true, mode: 0o711 });
  return path;
}
