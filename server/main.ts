/** The server program. */
import { BUILD } from "../kit/build.ts";
import { createLogger } from "../kit/log.ts";
import { runMain, runProgram, StartupError } from "../kit/program.ts";
import { printConfig, settingsHelp } from "../kit/settings/print.ts";
import { readConfig, serverSettings } from "./config.ts";
import { Server } from "./server.ts";

const NAME = "tendon-server";

const HELP = `The server of Tendon: the log, its database, every service on one port

Usage: tendon server [options]
  --new-admin-key  makes a new admin key in the data directory: for when the file was lost
  --print-config   shows the settings and where each comes from, without secrets
  --help, --version

`;

const OPTIONS = ["--new-admin-key", "--print-config", "--help", "--version"];

async function main(): Promise<number> {
  const args = process.argv.slice(2);
  const unknown = args.find((arg) => !OPTIONS.includes(arg));
  if (unknown !== undefined) throw new StartupError(`unknown option ${unknown}; see --help`, 2);
  if (args.includes("--version")) return print(BUILD);
  if (args.includes("--help")) return print(HELP + settingsHelp(serverSettings));
  const settings = readConfig();
  if (args.includes("--print-config")) return print(printConfig(settings));
  const config = settings.values;
  const log = createLogger(NAME, config.TENDON_LOG_LEVEL);
  const server = new Server({ config, log, replaceAdminKey: args.includes("--new-admin-key") });
  const { TENDON_LIFELINE_FD: lifelineFd, TENDON_FAILPOINTS: failpoints } = config;
  const running = runProgram({ name: NAME, log, lifelineFd, failpoints, service: server });
  const lost = await Promise.race([running, server.lost]);
  if (lost === undefined) return 0;
  await server.stop();
  throw new StartupError(`the embedded Postgres is gone: ${lost.message}`);
}

function print(text: string): number {
  process.stdout.write(`${text.trimEnd()}\n`);
  return 0;
}

await runMain(NAME, main);
