/** `tendon start`, the command behind `npm start`: everything on one machine. */
import type { Command } from "commander";
import { systemClock } from "../../kit/clock.ts";
import { StartupError } from "../../kit/program.ts";
import { runChat } from "../chat/chat.ts";
import { CALL_WITHIN, EXIT_USAGE, outputFor } from "../command.ts";
import { type CliConfig, inheritedEnvironment, readConfig } from "../config.ts";
import { type Api, connectTo, type GlobalOptions, type Target } from "../connect.ts";
import { dataDirOf } from "../data-dir.ts";
import { explainFailure } from "../explain.ts";
import type { Output } from "../output.ts";
import { ensureDefaults } from "../start/defaults.ts";
import { ignoredHere, localTarget } from "../start/local-target.ts";
import { runOnce } from "../start/once.ts";
import { failureError, Platform } from "../start/platform.ts";
import { runningStart } from "../start/prepare.ts";
import { StopSignal } from "../start/stop-signal.ts";
import { welcomeJson, welcomeText } from "../start/welcome.ts";
import { parseCount } from "../words.ts";

interface StartOptions extends GlobalOptions {
  readonly once?: string;
  readonly port?: number;
  readonly chat: boolean;
  readonly verbose?: boolean;
}

export function addStartCommand(program: Command): void {
  program
    .command("start")
    .description("start Postgres, server, harness, proxy and hand agent on this machine; Ctrl-C stops them")
    .option(
      "--once <text>",
      "run one session with this message, show it, and stop again; ends with 0 when it went well",
    )
    .option(
      "--port <n>",
      "port to listen on, 0 for a free one; left out: TENDON_PORT or 7400",
      parseCount(0, 65_535),
    )
    .option("--verbose", "with --once: also what only keeps the session's books")
    .option("--no-chat", "no conversation, also on a terminal")
    .addHelpText(
      "after",
      `
Everything is kept in the data directory: --data-dir, TENDON_DATA_DIR, or .tendon.
With ANTHROPIC_API_KEY a model answers (TENDON_MODEL names it); without it a scripted demo does.

Examples:
  npm start
  npm start -- --once "run: uname -a"
  tendon start --port 0 --data-dir /tmp/try --no-chat`,
    )
    .action(async (_options: object, command: Command) => {
      process.exitCode = await start(command.optsWithGlobals<StartOptions>());
    });
}

async function start(options: StartOptions): Promise<number> {
  const config = readConfig();
  if (options.once?.trim() === "") throw new StartupError("--once needs a message", EXIT_USAGE);
  const output = outputFor(options, config);
  const dataDir = dataDirOf(options.dataDir ?? config.TENDON_DATA_DIR);
  const startedMs = systemClock.monotonicMs();
  const running = options.once === undefined ? undefined : await runningStart(dataDir);
  if (running !== undefined)
    return onceElsewhere(options, output, await localTarget(running.url, dataDir, config), config);
  const stopSignal = new StopSignal();
  const platform = new Platform({
    dataDir,
    port: options.port ?? config.TENDON_PORT,
    config,
    environment: inheritedEnvironment(),
    note: output.note,
  });
  try {
    const api = await Promise.race([platform.start(), stopSignal.received]);
    if (typeof api === "string") return exitCodeOf(api, options);
    tellIgnored(api.target.url, options, config, output);
    const readyAfter = `${((systemClock.monotonicMs() - startedMs) / 1000).toFixed(1)} s`;
    try {
      const ended = await Promise.race([
        work(api, options, { output, readyAfter, signal: stopSignal.signal }),
        stopSignal.received,
        platform.failed.then((failure) => Promise.reject(failureError(failure, `${dataDir.path}/logs`))),
      ]);
      return typeof ended === "string" ? exitCodeOf(ended, options) : ended;
    } catch (error) {
      throw new StartupError(explainFailure(error, api.target) ?? (error as Error).message, 1, {
        cause: error,
      });
    } finally {
      api.close();
    }
  } finally {
    await platform.stop();
  }
}

/** Resolves with the exit code, or never while there is nothing to do but run. */
async function work(
  api: Api,
  options: StartOptions,
  { output, readyAfter, signal }: { output: Output; readyAfter: string; signal: AbortSignal },
): Promise<number> {
  const defaults = await ensureDefaults(api);
  const isVerbose = options.verbose === true;
  if (options.once !== undefined || output.json) output.note(`Ready after ${readyAfter}.`);
  if (options.once !== undefined)
    return runOnce(api, defaults.agentId, options.once, output, { signal, isVerbose });
  const status = await api.admin.getStatus({}, CALL_WITHIN);
  const text = () => welcomeText(api.target, status, readConfig(), readyAfter);
  output.value(welcomeJson(api.target, status, defaults), text);
  const isTerminal = process.stdin.isTTY === true && process.stdout.isTTY === true;
  if (options.chat && isTerminal && !output.json) {
    await runChat({ api, output, agentId: defaults.agentId, signal });
    return 0;
  }
  output.note("Ctrl-C stops everything.");
  return new Promise(() => {});
}

/** The directory is in use by a start that runs: its installation does the work. */
async function onceElsewhere(
  options: StartOptions,
  output: Output,
  target: Target,
  config: CliConfig,
): Promise<number> {
  const text = options.once!;
  const api = connectTo(target);
  const stopSignal = new StopSignal();
  try {
    output.note(`Tendon runs already at ${target.url}; using it.`);
    const { port } = options;
    if (port !== undefined && port !== 0 && !new URL(target.url).host.endsWith(`:${port}`))
      output.note(
        `--port ${port} is not used: one data directory has one installation. Stop it first, or name another with --data-dir.`,
      );
    tellIgnored(target.url, options, config, output);
    const { agentId } = await ensureDefaults(api);
    const ended = await Promise.race([
      runOnce(api, agentId, text, output, {
        signal: stopSignal.signal,
        isVerbose: options.verbose === true,
      }),
      stopSignal.received,
    ]);
    return typeof ended === "string" ? exitCodeOf(ended, { once: text }) : ended;
  } catch (error) {
    throw new StartupError(explainFailure(error, api.target) ?? (error as Error).message, 1, {
      cause: error,
    });
  } finally {
    api.close();
  }
}

function tellIgnored(url: string, options: StartOptions, config: CliConfig, output: Output): void {
  for (const line of ignoredHere(url, config, options.url)) output.note(line);
}

/** Being told to stop is how a start ends well; one session that was cut has not. */
function exitCodeOf(signal: string, options: { readonly once?: string }): number {
  if (options.once === undefined) return 0;
  return signal === "SIGINT" ? 130 : 143;
}
