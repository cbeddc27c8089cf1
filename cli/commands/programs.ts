/** `tendon server`, `harness`, `mcp-proxy` and `hand-agent run`: the program goes on in this process. */
import { pathToFileURL } from "node:url";
import type { Command } from "commander";
import { StartupError } from "../../kit/program.ts";
import { EXIT_USAGE } from "../command.ts";
import { overrideSettings } from "../config.ts";
import { type ProgramName, programFile } from "../program-files.ts";

const DESCRIPTIONS = {
  server: "run the server: the log, its database, every service on one port",
  harness: "run a harness: the brains; dials the server",
  "mcp-proxy": "run the proxy: the only program that opens credentials; dials the server",
} as const;

/** Arguments go to the program as they are: `tendon server --help` tells its settings. */
export function addProgramCommands(program: Command): void {
  for (const [name, description] of Object.entries(DESCRIPTIONS)) {
    program
      .command(`${name} [arguments...]`)
      .description(description)
      .allowUnknownOption()
      .helpOption(false)
      .action(async () => {
        const given = process.argv.slice(process.argv.indexOf(name) + 1);
        await becomeProgram(name as ProgramName, given);
      });
  }
}

/** Options go to the program as they are, but for those that only this command has. */
export function addHandAgentRun(handAgent: Command): void {
  handAgent
    .command("run [arguments...]")
    .description(
      "run a hand agent on this machine: it dials the server and hosts hands; --token-file FILE holds its join token, --help tells its other options",
    )
    .allowUnknownOption()
    .helpOption(false)
    .action(async (_arguments: string[], _options: object, command: Command) => {
      const { url, caFile } = command.optsWithGlobals<{ url?: string; caFile?: string }>();
      const given = process.argv.slice(process.argv.indexOf("run") + 1);
      const { value: tokenFile, rest } = takeOption(given, "--token-file");
      const { rest: args } = takeOption(rest, "--ca-file");
      overrideSettings({ TENDON_URL: url, TENDON_CA_FILE: caFile, TENDON_JOIN_TOKEN_FILE: tokenFile });
      await becomeProgram("hand-agent", args);
    });
}

/** An option's value, and the arguments without it. */
export function takeOption(
  args: readonly string[],
  name: string,
): { value: string | undefined; rest: readonly string[] } {
  const index = args.findIndex((arg) => arg === name || arg.startsWith(`${name}=`));
  if (index < 0) return { value: undefined, rest: args };
  const isJoined = args[index] !== name;
  const value = isJoined ? args[index]!.slice(name.length + 1) : args[index + 1];
  if (!value) throw new StartupError(`${name} needs a file`, EXIT_USAGE);
  return { value, rest: args.toSpliced(index, isJoined ? 1 : 2) };
}

/** Resolves when the program has ended; most of them end the process before. */
export async function becomeProgram(name: ProgramName, args: readonly string[]): Promise<void> {
  const file = programFile(name);
  process.argv = [process.execPath, file, ...args];
  await import(pathToFileURL(file).href);
}
