/** What the hand agent's program does with its command line. */
import { homedir } from "node:os";
import { resolve } from "node:path";
import { BUILD } from "../kit/build.ts";
import { systemClock } from "../kit/clock.ts";
import { newId } from "../kit/ids.ts";
import { createLogger, type Logger } from "../kit/log.ts";
import { runProgram, StartupError } from "../kit/program.ts";
import { printConfig, settingsHelp } from "../kit/settings/print.ts";
import { SettingsError } from "../kit/settings/settings.ts";
import {
  type HandAgentSettings,
  handAgentSettings,
  type Invocation,
  readInvocation,
  USAGE,
} from "./config.ts";
import { probeDrivers } from "./driver-offers.ts";
import type { Driver } from "./drivers/driver.ts";
import { readMcpServers } from "./drivers/mcp/server-config.ts";
import { makeDrivers } from "./drivers/registry.ts";
import { HandAgent } from "./hand-agent.ts";
import { purge } from "./purge.ts";
import { AgentRelays } from "./relay/agent-relays.ts";
import { TOOL_DEFINITIONS } from "./tools/registry.ts";
import { openTracing } from "./tracing.ts";
import { SandboxTunnels } from "./tunnels/sandbox-tunnels.ts";

/** Of programs that are given credentials to look up. */
const HELPER_ENV = {
  PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
  HOME: ownHome(),
};

/** A service's user may be no more than a number, in no file and without a home. */
function ownHome(): string {
  try {
    return homedir();
  } catch {
    return "/";
  }
}

/** Gives the exit code. */
export async function handAgentProgram(): Promise<number> {
  const { command, once, yes, settings } = invocation();
  switch (command) {
    case "help":
      process.stdout.write(`${USAGE}\n${settingsHelp(handAgentSettings)}`);
      return 0;
    case "version":
      process.stdout.write(`${BUILD}\n`);
      return 0;
    case "print-config":
      process.stdout.write(printConfig(settings));
      return 0;
    case "doctor":
      return doctor(settings);
    case "purge":
      return purgeHere(settings, yes);
    case "run":
      return run(settings, once);
  }
}

function invocation(): Invocation {
  try {
    return readInvocation(process.argv.slice(2));
  } catch (error) {
    if (error instanceof SettingsError) throw new StartupError(error.message, 2);
    throw error;
  }
}

const MIB = 1024 ** 2;

async function run({ values }: HandAgentSettings, once: boolean): Promise<number> {
  const log = createLogger("hand-agent", values.TENDON_LOG_LEVEL);
  const tracing = openTracing(values, { instanceId: newId("handAgent"), clock: systemClock, log });
  const sandboxTunnels = new SandboxTunnels(systemClock);
  const agent = new HandAgent({
    url: values.TENDON_URL,
    joinToken: values.TENDON_JOIN_TOKEN,
    dataDir: values.TENDON_HAND_AGENT_DATA_DIR,
    name: values.TENDON_HAND_AGENT_NAME,
    labels: values.TENDON_HAND_AGENT_LABELS ?? {},
    capacity: values.TENDON_HAND_AGENT_CAPACITY,
    provisionsAtOnce: values.TENDON_HAND_AGENT_PROVISIONS || undefined,
    caFile: values.TENDON_CA_FILE,
    proxy: { httpsProxy: values.HTTPS_PROXY, noProxy: values.NO_PROXY },
    reach: values.TENDON_HAND_AGENT_REACH,
    repositoryCacheBytes: values.TENDON_HAND_AGENT_REPOSITORY_CACHE_MB * MIB,
    once,
    drainMs: values.TENDON_HAND_AGENT_DRAIN_MS,
    build: BUILD,
    drivers: (dataDir, installationId) => driversOf(values, { dataDir, installationId, log, sandboxTunnels }),
    sandboxTunnels,
    clock: systemClock,
    log,
    tracing,
  });
  const { TENDON_LIFELINE_FD: lifelineFd, TENDON_FAILPOINTS: failpoints } = values;
  const hurry = () => agent.hurry();
  const program = { name: "hand-agent", log, lifelineFd, failpoints, service: agent, hurry };
  try {
    await Promise.race([runProgram(program), agent.ended]);
    return 0;
  } finally {
    await agent.stop();
    await tracing.stop();
  }
}

/** One line of JSON: what hands this machine can make. For `tendon doctor`. */
async function doctor({ values }: HandAgentSettings): Promise<number> {
  const log = createLogger("hand-agent", "silent");
  const dataDir = resolve(values.TENDON_HAND_AGENT_DATA_DIR);
  const [offers, limitedNetwork] = await Promise.all([
    probeDrivers(driversOf(values, { dataDir, installationId: () => "", log })),
    relaysOf(values, log).probe(),
  ]);
  const drivers = offers.map(({ name, available, isolation, detail }) => ({
    name,
    available,
    isolation,
    detail,
  }));
  const report = { build: BUILD, node: process.version, dataDir, drivers, limitedNetwork };
  process.stdout.write(`${JSON.stringify(report)}\n`);
  return drivers.some(({ available }) => available) ? 0 : 1;
}

function purgeHere({ values }: HandAgentSettings, isMeant: boolean): Promise<number> {
  const log = createLogger("hand-agent", "silent");
  const dataDir = resolve(values.TENDON_HAND_AGENT_DATA_DIR);
  const drivers = driversOf(values, { dataDir, installationId: () => "", log });
  const say = (line: string) => void process.stdout.write(`${line}\n`);
  return purge({ dataDir, drivers, isMeant, clock: systemClock, say });
}

interface DriverSurroundings {
  readonly dataDir: string;
  readonly installationId: () => string;
  readonly log: Logger;
  /** Not set where no hand is made. */
  readonly sandboxTunnels?: SandboxTunnels;
}

function driversOf(
  values: HandAgentSettings["values"],
  { dataDir, installationId, log, sandboxTunnels }: DriverSurroundings,
): Driver[] {
  const { DOCKER_HOST: host, DOCKER_TLS_VERIFY: tlsVerify, DOCKER_CERT_PATH: certPath } = values;
  const options = {
    dataDir,
    clock: systemClock,
    log,
    tools: TOOL_DEFINITIONS,
    relays: relaysOf(values, log, sandboxTunnels),
    process: { isolation: values.TENDON_HAND_AGENT_ISOLATION },
    docker: {
      engine: { host, tlsVerify: tlsVerify !== "", certPath },
      // Credential helpers find themselves and their own files; nothing else of the agent's environment is theirs.
      registryAuth: { file: values.TENDON_HAND_AGENT_REGISTRY_AUTH_FILE, helperEnv: HELPER_ENV },
      installationId,
    },
    mcp: mcpServersOf(values),
  };
  return makeDrivers(options, values.TENDON_HAND_AGENT_TEST_SCRIPT);
}

function mcpServersOf({ TENDON_HAND_AGENT_MCP_FILE: path }: HandAgentSettings["values"]) {
  if (path === "") return [];
  try {
    return readMcpServers(path);
  } catch (error) {
    throw new StartupError(`TENDON_HAND_AGENT_MCP_FILE: ${(error as Error).message}`, 2);
  }
}

/** Hands reach the network as this machine does: by its name servers, and through its proxy where it has one. */
function relaysOf(
  { HTTPS_PROXY, NO_PROXY }: HandAgentSettings["values"],
  log: Logger,
  tunnels?: SandboxTunnels,
): AgentRelays {
  const proxy = { httpsProxy: HTTPS_PROXY, noProxy: NO_PROXY };
  return new AgentRelays({ proxy, clock: systemClock, log, ...(tunnels === undefined ? {} : { tunnels }) });
}
