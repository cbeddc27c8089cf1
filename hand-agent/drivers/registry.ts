/** The drivers of this agent. A new driver is one folder and one line here. */
import type { Clock } from "../../kit/clock.ts";
import type { Logger } from "../../kit/log.ts";
import type { Driver, ToolDefinition } from "./driver.ts";
import type { IsolationMode } from "./process/isolation.ts";
import { ProcessDriver } from "./process/process-driver.ts";

export interface DriverOptions {
  readonly dataDir: string;
  readonly clock: Clock;
  readonly log: Logger;
  /** The tools that hands with processes and files get. */
  readonly tools: readonly ToolDefinition[];
  readonly process: {
    readonly isolation?: "auto" | IsolationMode;
    readonly hiddenPaths?: readonly string[];
    /** The hands' PATH. */
    readonly path?: string;
  };
}

export const DRIVERS: Readonly<Record<string, (options: DriverOptions) => Driver>> = {
  process: ({ process, ...rest }) => new ProcessDriver({ ...rest, ...process }),
};
