/** The proxy: the only program that opens sealed credentials. */
import { BUILD } from "../kit/build.ts";
import { systemClock } from "../kit/clock.ts";
import { dial } from "../kit/dial/dial.ts";
import { newId } from "../kit/ids.ts";
import type { Service } from "../kit/lifecycle.ts";
import { createLogger, type Logger } from "../kit/log.ts";
import { runMain, runProgram, StartupError } from "../kit/program.ts";
import { printConfig, settingsHelp } from "../kit/settings/print.ts";
import { NO_TRACING, type Tracing } from "../kit/trace.ts";
import { openTracing } from "../kit/trace-sdk.ts";
import { type ProxyConfig, proxySettings, readConfig } from "./config.ts";
import { type Inbound, listenInbound } from "./inbound.ts";
import { createParts, type ProxyParts } from "./parts.ts";
import { addSealingKey, loadSealingKeys, type SealingKeys } from "./sealing-key.ts";
import { ServerLink } from "./server-link.ts";

const NAME = "tendon-mcp-proxy";
const PROTOCOL_VERSION = 1;
const OPTIONS = ["--new-sealing-key", "--print-config", "--help", "--version"];
const HELP = `The proxy: opens sealed credentials towards MCP servers, git and APIs; dials the server

Usage: tendon mcp-proxy [options]
  --new-sealing-key  puts a new key in front of those of TENDON_PROXY_SEALING_KEY_FILE, and ends; then start the proxies
                     again: what is sealed to the older keys is sealed to it within minutes
  --print-config     shows the settings and where each comes from, without secrets
  --help, --version

`;

/** First the listener, whose port the server is told, then the connection. */
class ProxyProgram implements Service {
  readonly name = NAME;
  private readonly config: ProxyConfig;
  private readonly log: Logger;
  private inbound: Inbound | undefined;
  private parts: ProxyParts | undefined;
  private link: ServerLink | undefined;
  private tracing: Tracing = NO_TRACING;
  private disconnect = () => {};

  constructor(config: ProxyConfig, log: Logger) {
    this.config = config;
    this.log = log;
  }

  async start(): Promise<void> {
    const { config, log } = this;
    const keys = await loadSealingKeys(sealingKeySource(config));
    this.inbound = await listenInbound(
      config.TENDON_PROXY_HOST,
      config.TENDON_PROXY_PORT,
      () => this.link?.connected === true && this.parts?.isWelcomed() === true,
      (request, response, path) => this.parts?.ofSessions(request, response, path),
    );
    this.tracing = await openTracing({ name: NAME, instanceId: newId("proxy") }, config, log);
    const { tracing } = this;
    const url = config.TENDON_PROXY_URL ?? `http://${config.TENDON_PROXY_HOST}:${this.inbound.port}`;
    const connection = dial({
      url: config.TENDON_URL,
      caFile: config.TENDON_CA_FILE,
      token: () => config.TENDON_PROXY_KEY,
      proxy: { httpsProxy: config.HTTPS_PROXY, noProxy: config.NO_PROXY },
    });
    this.disconnect = () => connection.close();
    this.parts = createParts({
      config,
      keys,
      connection,
      port: this.inbound.port,
      clock: systemClock,
      log,
      tracing,
    });
    await this.parts.start();
    this.link = new ServerLink({
      connection,
      hello: hello(url, keys, config),
      asks: this.parts.asks,
      connects: this.parts.connects,
      webhooks: this.parts.webhooks,
      onWelcome: (welcome) => this.parts?.welcomed(welcome),
      onTunnel: (ask) => this.parts?.tunnels.asked(ask) ?? STOPS,
      onForgetSession: (sessionId) => this.parts?.forgetSession(sessionId),
      clock: systemClock,
      log,
    });
    await this.link.start();
    log.info({ url, keyId: keys[0].keyId, keys: keys.length }, "the proxy listens");
  }

  async stop(): Promise<void> {
    await this.parts?.webhooks.rest();
    await this.link?.stop();
    await this.parts?.stop();
    this.disconnect();
    await this.inbound?.close();
    await this.tracing.stop();
  }
}

const STOPS = { reason: "DRAINING", message: "the proxy stops" };

function sealingKeySource(config: ProxyConfig) {
  return { text: config.TENDON_PROXY_SEALING_KEYS, path: config.TENDON_PROXY_SEALING_KEY_FILE };
}

function hello(url: string, keys: SealingKeys, config: ProxyConfig) {
  return {
    instanceId: newId("proxy"),
    protocolVersion: PROTOCOL_VERSION,
    build: BUILD,
    url,
    sealingKeys: keys.map(({ keyId, publicJwk }) => ({ keyId, publicJwk })),
    webTools: { fetch: config.TENDON_WEB_FETCH, search: config.TENDON_WEB_SEARCH_URL !== undefined },
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
  if (args.includes("--new-sealing-key")) {
    if (settings.values.TENDON_PROXY_SEALING_KEYS !== undefined)
      throw new StartupError(
        "the keys come from TENDON_PROXY_SEALING_KEYS: add a new one there, in front",
        2,
      );
    const [{ keyId }] = await addSealingKey(settings.values.TENDON_PROXY_SEALING_KEY_FILE);
    return print(`New sealing key: ${keyId}`);
  }
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
