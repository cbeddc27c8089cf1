/** The proxy: the only program that opens sealed credentials. */
import { BUILD } from "../kit/build.ts";
import { systemClock } from "../kit/clock.ts";
import { dial } from "../kit/dial/dial.ts";
import { newId } from "../kit/ids.ts";
import type { Service } from "../kit/lifecycle.ts";
import { createLogger, type Logger } from "../kit/log.ts";
import { runMain, runProgram, StartupError } from "../kit/program.ts";
import { printConfig, settingsHelp } from "../kit/settings/print.ts";
import { type ProxyConfig, proxySettings, readConfig } from "./config.ts";
import { type Inbound, listenInbound } from "./inbound.ts";
import { loadOrCreateSealingKey, type SealingKeyPair } from "./sealing-key.ts";
import { ServerLink } from "./server-link.ts";

const NAME = "tendon-mcp-proxy";
const PROTOCOL_VERSION = 1;
const OPTIONS = ["--print-config", "--help", "--version"];
const HELP = `The proxy: opens sealed credentials towards MCP servers, git and APIs; dials the server

Usage: tendon mcp-proxy [options]
  --print-config   shows the settings and where each comes from, without secrets
  --help, --version

`;

/** First the listener, whose port the server is told, then the connection. */
class ProxyProgram implements Service {
  readonly name = NAME;
  private readonly config: ProxyConfig;
  private readonly log: Logger;
  private inbound: Inbound | undefined;
  private link: ServerLink | undefined;
  private disconnect = () => {};

  constructor(config: ProxyConfig, log: Logger) {
    this.config = config;
    this.log = log;
  }

  async start(): Promise<void> {
    const { config, log } = this;
    const key = await loadOrCreateSealingKey(config.TENDON_PROXY_SEALING_KEY_FILE);
    this.inbound = await listenInbound(
      config.TENDON_PROXY_HOST,
      config.TENDON_PROXY_PORT,
      () => this.link?.connected ?? false,
    );
    const url = config.TENDON_PROXY_URL ?? `http://${config.TENDON_PROXY_HOST}:${this.inbound.port}`;
    const connection = dial({
      url: config.TENDON_URL,
      caFile: config.TENDON_CA_FILE,
      token: () => config.TENDON_PROXY_KEY,
      proxy: { httpsProxy: config.HTTPS_PROXY, noProxy: config.NO_PROXY },
    });
    this.disconnect = () => connection.close();
    this.link = new ServerLink({ connection, hello: hello(url, key), clock: systemClock, log });
    await this.link.start();
    log.info({ url, keyId: key.keyId }, "the proxy listens");
  }

  async stop(): Promise<void> {
    await this.link?.stop();
    this.disconnect();
    await this.inbound?.close();
  }
}

function hello(url: string, { keyId, publicJwk }: SealingKeyPair) {
  return {
    instanceId: newId("proxy"),
    protocolVersion: PROTOCOL_VERSION,
    build: BUILD,
    url,
    sealingKeys: [{ keyId, publicJwk }],
  };
}

async function main(): Promise<number | undefined> {
  const args = process.argv.slice(2);
  const unknown = args.find((arg) => !OPTIONS.includes(arg));
  if (unknown !== undefined) throw new StartupError(`unknown option ${unknown}; see --help`, 2);
  if (args.includes("--version")) return print(BUILD);
  if (args.includes("--help")) return print(HELP + settingsHelp(proxySettings));
  const settings = readConfig();
  if (args.includes("--print-config")) return print(printConfig(settings));
  const log = createLogger(NAME, settings.values.TENDON_LOG_LEVEL);
  const { TENDON_LIFELINE_FD: lifelineFd, TENDON_FAILPOINTS: failpoints } = settings.values;
  const service = new ProxyProgram(settings.values, log);
  await runProgram({ name: NAME, log, lifelineFd, failpoints, service });
  return 0;
}

function print(text: string): number {
  process.stdout.write(`${text.trimEnd()}\n`);
  return 0;
}

await runMain(NAME, main);
