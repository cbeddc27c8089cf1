/** What every command is built from: global options, a connection while it runs, and failures that say what to do. */
import type { Command } from "commander";
import { StartupError } from "../kit/program.ts";
import { SettingsError } from "../kit/settings/settings.ts";
import { type CliConfig, readConfig } from "./config.ts";
import { type Api, connectTo, findTarget, type GlobalOptions, type Target } from "./connect.ts";
import { explainFailure, failureJson } from "./explain.ts";
import { createOutput, type Output } from "./output.ts";

/** A command's failure that has been told already, or is told by its message alone. */
export const EXIT_FAILED = 1;
export const EXIT_USAGE = 2;

export interface CommandContext<Options> {
  readonly options: Options & GlobalOptions;
  /** Arguments of the command, in order; variadic ones are lists. */
  readonly args: readonly unknown[];
  readonly output: Output;
  readonly config: CliConfig;
  readonly target: Target;
  readonly api: Api;
}

/** Returns the exit code; anything else means 0. */
export type Handler<Options> = (context: CommandContext<Options>) => Promise<unknown>;

/** Unary calls that take longer have failed. */
export const CALL_WITHIN = { deadlineMs: 30_000 } as const;

/** Runs `handler` as the command's action, with a connection that ends with it. `exitFailed`: for calls that fail. */
export function onAction<Options extends object>(
  command: Command,
  handler: Handler<Options>,
  { exitFailed = EXIT_FAILED }: { exitFailed?: number } = {},
): void {
  command.action(async (...all: unknown[]) => {
    const self = all.at(-1) as Command;
    const options = self.optsWithGlobals() as Options & GlobalOptions;
    const config = readConfig();
    const output = outputFor(options, config);
    const target = await findTarget(options, config);
    const api = connectTo(target);
    try {
      const args = self.processedArgs;
      const code = await handler({ options, args, output, config, target, api });
      process.exitCode = typeof code === "number" ? code : 0;
    } catch (error) {
      process.exitCode = tellFailure(error, { target, json: output.json, exitFailed });
    } finally {
      api.close();
    }
  });
}

export function outputFor({ json, color }: GlobalOptions, config: CliConfig): Output {
  return createOutput({ json: json === true, isPlain: color === false || config.NO_COLOR !== undefined });
}

/** Returns the exit code. Throws what has no words for people. */
function tellFailure(error: unknown, told: { target: Target; json: boolean; exitFailed: number }): number {
  const { target, json, exitFailed } = told;
  const message = explainFailure(error, target) ?? knownMessage(error);
  if (message === undefined) throw error;
  const exitCode = error instanceof StartupError ? error.exitCode : exitFailed;
  if (!json) throw new StartupError(message, exitCode, { cause: error });
  process.stderr.write(`${JSON.stringify(failureJson(error, message))}\n`);
  return exitCode;
}

function knownMessage(error: unknown): string | undefined {
  return error instanceof StartupError || error instanceof SettingsError ? error.message : undefined;
}
