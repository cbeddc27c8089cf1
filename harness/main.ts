/** The harness program: runs brains. It dials out and opens no port that others could reach. */
import { BUILD } from "../kit/build.ts";
import { systemClock } from "../kit/clock.ts";
import { dial } from "../kit/dial/dial.ts";
import { messageOf } from "../kit/errors.ts";
import { newId } from "../kit/ids.ts";
import type { Service } from "../kit/lifecycle.ts";
import { createLogger, type Logger } from "../kit/log.ts";
import { runMain, runProgram, StartupError } from "../kit/program.ts";
import { printConfig, settingsHelp } from "../kit/settings/print.ts";
import { openTracing } from "../kit/trace-sdk.ts";
import { HandService } from "../proto/gen/tendon/v1/hand_service_pb.js";
import { HarnessService } from "../proto/gen/tendon/v1/harness_service_pb.js";
import { MemoryService } from "../proto/gen/tendon/v1/memory_service_pb.js";
import { SessionService } from "../proto/gen/tendon/v1/session_service_pb.js";
import { ThreadService } from "../proto/gen/tendon/v1/thread_service_pb.js";
import { childEnvironment, type HarnessConfig, harnessSettings, readConfig } from "./config.ts";
import { Harness } from "./harness.ts";
import { defaultHistoryBytes, HistoryRoom } from "./history-room.ts";
import { ModelClient } from "./loops/claude/model-client.ts";
import { createModelFetch } from "./loops/claude/model-fetch.ts";
import { createTextModel } from "./loops/claude/text-requests.ts";
import { readProgramTable } from "./loops/external/program-table.ts";
import { createLoops, type LoopsOptions } from "./loops/registry.ts";
import { type ModelSource, openModelSource } from "./model-source.ts";
import { CallJudge } from "./permission/call-judge.ts";

const NAME = "tendon-harness";
const MIB = 1024 * 1024;
const OPTIONS = ["--print-config", "--help", "--version"];
const HELP = `A harness: runs the brains of sessions; dials the server

Usage: tendon harness [options]
  --print-config   shows the settings and where each comes from, without secrets
  --help, --version

`;
/** Together with hanging up, well within the 10 s that a launcher gives its programs. */
const DRAIN_MS = 4_000;
/** Rounds of tool calls in one turn. */
const MAX_ROUNDS = 1_000;
/** Whoever waits for a verdict hears this often that it is being thought about. */
const GRADING_HEARTBEAT_MS = 10_000;

class HarnessProgram implements Service {
  readonly name = NAME;
  private readonly config: HarnessConfig;
  private readonly log: Logger;
  /** What is to be undone, in order. */
  private readonly stops: (() => Promise<void> | void)[] = [];

  constructor(config: HarnessConfig, log: Logger) {
    this.config = config;
    this.log = log;
  }

  async start(): Promise<void> {
    const { config, log } = this;
    const { TENDON_HARNESS_HISTORY_MIB: historyMib } = config;
    const source = await openModelSource(
      {
        apiKey: config.ANTHROPIC_API_KEY,
        authToken: config.ANTHROPIC_AUTH_TOKEN,
        baseUrl: config.ANTHROPIC_BASE_URL,
        model: config.TENDON_MODEL,
      },
      systemClock,
      log,
    );
    this.stops.unshift(() => source.stop());
    const { transport, connection } = this.openConnections();
    this.stops.unshift(() => transport.close());
    this.stops.unshift(() => connection.close());
    const client = new ModelClient({ ...source, fetch: transport.fetch, clock: systemClock });
    const tracing = await openTracing({ name: "tendon-harness", instanceId: newId("harness") }, config, log);
    this.stops.unshift(() => tracing.stop());
    const harness = new Harness({
      server: {
        harness: connection.client(HarnessService),
        sessions: connection.client(SessionService),
        hands: connection.client(HandService),
        memory: connection.client(MemoryService),
        threads: connection.client(ThreadService),
      },
      loops: createLoops({
        claude: { client, clock: systemClock, defaultModel: source.defaultModel },
        ...this.claudeCodeLoop(source),
        ...this.externalLoop(),
      }),
      textModel: createTextModel(client, source.defaultModel),
      capacity: config.TENDON_HARNESS_CAPACITY,
      room: new HistoryRoom(historyMib === undefined ? defaultHistoryBytes() : historyMib * MIB, systemClock),
      modelSource: source.kind,
      build: BUILD,
      drainMs: DRAIN_MS,
      settings: {
        modelTimeoutMs: config.TENDON_MODEL_TIMEOUT_MS,
        retry: {
          firstMs: config.TENDON_MODEL_RETRY_FIRST_MS,
          maxMs: config.TENDON_MODEL_RETRY_MAX_MS,
          totalMs: config.TENDON_MODEL_RETRY_TOTAL_MS,
        },
        maxRounds: MAX_ROUNDS,
        gradingHeartbeatMs: GRADING_HEARTBEAT_MS,
        graderModel: config.TENDON_OUTCOME_MODEL,
      },
      judge: new CallJudge({
        model: createTextModel(client, source.defaultModel),
        modelId: config.TENDON_AUTO_POLICY_MODEL,
        clock: systemClock,
        retryMs: config.TENDON_MODEL_RETRY_FIRST_MS,
      }),
      clock: systemClock,
      log,
      tracing,
      proxyCaFile: config.TENDON_CA_FILE,
    });
    await harness.start();
    this.stops.unshift(() => harness.stop());
  }

  private claudeCodeLoop(model: ModelSource): Pick<LoopsOptions, "claudeCode"> {
    const { TENDON_CLAUDE_CODE_PROCESSES: maxProcesses, HTTPS_PROXY: httpsProxy, NO_PROXY } = this.config;
    if (maxProcesses === 0) return {};
    const proxy = { httpsProxy, noProxy: NO_PROXY };
    const plain = childEnvironment();
    const { defaultModel } = model;
    return { claudeCode: { plain, model, proxy, defaultModel, maxProcesses, clock: systemClock } };
  }

  private externalLoop(): Pick<LoopsOptions, "external"> {
    const { TENDON_EXTERNAL_LOOPS: path, TENDON_EXTERNAL_LOOP_PROCESSES: maxProcesses } = this.config;
    if (path === undefined) return {};
    try {
      const programs = readProgramTable(path);
      return { external: { programs, environment: childEnvironment(), maxProcesses, clock: systemClock } };
    } catch (error) {
      throw new StartupError(messageOf(error));
    }
  }

  private openConnections() {
    const { config } = this;
    const proxy = { httpsProxy: config.HTTPS_PROXY, noProxy: config.NO_PROXY };
    try {
      const transport = createModelFetch(proxy);
      const token = () => config.TENDON_HARNESS_KEY;
      const connection = dial({ url: config.TENDON_URL, caFile: config.TENDON_CA_FILE, token, proxy });
      return { transport, connection };
    } catch (error) {
      throw new StartupError(messageOf(error));
    }
  }

  async stop(): Promise<void> {
    for (const stop of this.stops.splice(0)) await stop();
  }
}

async function main(): Promise<number> {
  const args = process.argv.slice(2);
  const unknown = args.find((arg) => !OPTIONS.includes(arg));
  if (unknown !== undefined) throw new StartupError(`unknown option ${unknown}; see --help`, 2);
  if (args.includes("--version")) return print(BUILD);
  if (args.includes("--help")) return print(HELP + settingsHelp(harnessSettings));
  const settings = readConfig();
  if (args.includes("--print-config")) return print(printConfig(settings));
  const log = createLogger(NAME, settings.values.TENDON_LOG_LEVEL);
  const { TENDON_LIFELINE_FD: lifelineFd, TENDON_FAILPOINTS: failpoints } = settings.values;
  const service = new HarnessProgram(settings.values, log);
  await runProgram({ name: NAME, log, lifelineFd, failpoints, service });
  return 0;
}

function print(text: string): number {
  process.stdout.write(`${text.trimEnd()}\n`);
  return 0;
}

await runMain(NAME, main);
