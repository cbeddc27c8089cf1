/** `tendon server`, `harness`, `mcp-proxy` and `hand-agent run`: the program goes on in this process. */
import { pathToFileURL } from "node:url";
import type { Command } from "commander";
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

/** Options go to the program as they are; those that every command takes may also stand before. */
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
      overrideSettings({ TENDON_URL: url, TENDON_CA_FILE: caFile });
      await becomeProgram("hand-agent", given);
    });
}

/** The program's `--purge`, on this machine and without a server. */
export function addHandAgentPurge(handAgent: Command): void {
  handAgent
    .command("purge [arguments...]")
    .description(
      "list the hands that a stopped or revoked agent left on this machine (--data-dir DIR); with --yes remove them with their files",
    )
    .allowUnknownOption()
    .helpOption(false)
    .action(async () => {
      const given = process.argv.slice(process.argv.indexOf("purge") + 1);
      await becomeProgram("hand-agent", ["--purge", ...given]);
    });
}

/** Resolves when the program has ended; most of them end the process before. */
export async function becomeProgram(name: ProgramName, args: readonly string[]): Promise<void> {
  const file = programFile(name);
  process.argv = [process.execPath, file, ...args];
  await import(pathToFileURL(file).href);
}
