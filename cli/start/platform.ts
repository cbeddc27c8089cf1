/**
 * All programs of an installation on this machine: started in the order that they need, kept running, and stopped in the
 * opposite order. Once the key files exist everything starts at the same time, and each program waits for the server.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { type Clock, systemClock } from "../../kit/clock.ts";
import { StartupError } from "../../kit/program.ts";
import type { CliConfig, Environment } from "../config.ts";
import { type Api, connectTo } from "../connect.ts";
import type { DataDir } from "../data-dir.ts";
import { PROGRAM_NAMES, type ProgramName, programFile } from "../program-files.ts";
import { type ChildFailure, ChildProgram } from "./child-program.ts";
import { asAwaited, askHealth } from "./health.ts";
import { localCaFile, localTarget } from "./local-target.ts";
import { openLogFile } from "./log-file.ts";
import {
  findPort,
  forgetRunRecord,
  keptPort,
  prepareDataDir,
  saveRunRecord,
  settleFormerStart,
} from "./prepare.ts";
import { type ChildSettings, childSettings } from "./programs.ts";

export interface PlatformOptions {
  readonly dataDir: DataDir;
  /** 0 takes a free one. */
  readonly port: number;
  readonly config: CliConfig;
  readonly environment: Environment;
  /** Progress, for people. */
  readonly note: (text: string) => void;
  readonly clock?: Clock;
}

/** The very first start copies and initialises a database; on a slow disk that takes its time. */
const READY_WITHIN_MS = 180_000;
const POLL_MS = 40;
/** A start that takes longer says what it waits for. */
const SAY_WHY_AFTER_MS = 5_000;
/** Together below the 10 s in which everything has to be gone. */
const WORKERS_STOP_WITHIN_MS = 5_000;
const SERVER_STOP_WITHIN_MS = 4_500;
const JOIN_TOKEN_FOR_MS = 600_000n;

export class Platform {
  private readonly options: PlatformOptions;
  private readonly clock: Clock;
  private readonly children = new Map<ProgramName, ChildProgram>();
  private url = "";
  private proxyPort = 0;
  private saving: Promise<void> = Promise.resolve();
  private stopping: Promise<void> | undefined;
  private reportFailure: (failure: ChildFailure) => void = () => {};
  /** Resolves when a program cannot be kept running. */
  readonly failed: Promise<ChildFailure>;

  constructor(options: PlatformOptions) {
    this.options = options;
    this.clock = options.clock ?? systemClock;
    this.failed = new Promise((resolve) => {
      this.reportFailure = resolve;
    });
  }

  /** Resolves when a session can run. Throws a StartupError; what was started is stopped by `stop` alone. */
  async start(): Promise<Api> {
    const { dataDir, config, note } = this.options;
    if (config.TENDON_TLS_CLIENT_CA !== undefined) {
      throw new StartupError(
        "tendon start gives its programs no client certificates: start each program by itself, or unset TENDON_TLS_CLIENT_CA",
        2,
      );
    }
    await prepareDataDir(dataDir);
    await settleFormerStart(dataDir, this.clock, note);
    const port = await findPort(config.TENDON_HOST, this.options.port);
    this.url = urlOf(config, port);
    const isFirst = !existsSync(this.path("harness.key")) || !existsSync(this.path("proxy.key"));
    note(isFirst ? "First start: making the database …" : "Starting …");
    await this.launch("server", () => this.serverSettings(port));
    if (isFirst) {
      await this.waitUntil("/readyz", "server");
      note("The server is up; starting harness, proxy and hand agent …");
    }
    await this.launch("harness", () => this.dialSettings("TENDON_HARNESS_KEY_FILE", "harness.key"));
    await this.launch("mcp-proxy", () => this.proxySettings());
    if (!this.isEnrolled()) await this.waitUntil("/readyz", "server");
    await this.launch("hand-agent", () => this.handAgentSettings());
    await this.waitUntil("/healthz", "platform");
    for (const child of this.children.values()) child.stands();
    return this.connect();
  }

  /** Everything that was started is gone afterwards, within 10 s. May be called at any time, and twice. */
  stop(): Promise<void> {
    this.stopping ??= this.stopAll();
    return this.stopping;
  }

  private async stopAll(): Promise<void> {
    if (this.children.size > 0) this.options.note("Stopping …");
    const workers = PROGRAM_NAMES.filter((name) => name !== "server").map((name) => this.children.get(name));
    await Promise.all(workers.map((child) => child?.stop(WORKERS_STOP_WITHIN_MS)));
    await this.children.get("server")?.stop(SERVER_STOP_WITHIN_MS);
    await this.saving;
    if (this.url !== "") await forgetRunRecord(this.options.dataDir);
  }

  private path(name: string): string {
    return join(this.options.dataDir.path, name);
  }

  private async launch(
    name: ProgramName,
    settings: () => Promise<ChildSettings> | ChildSettings,
  ): Promise<void> {
    if (this.stopping !== undefined) throw new StartupError("stopped while it started");
    const { dataDir, environment } = this.options;
    const child = new ChildProgram({
      name,
      file: programFile(name),
      settings: async () => childSettings(name, environment, await settings()),
      stopsBefore: name === "server" ? undefined : this.children.get("server"),
      log: openLogFile(dataDir.path, name),
      clock: this.clock,
      onChange: () => this.saveRecord(),
      onFailed: (failure) => this.reportFailure(failure),
    });
    this.children.set(name, child);
    await child.start();
  }

  private saveRecord(): void {
    if (this.stopping !== undefined) return;
    const running = [...this.children.values()].flatMap(({ name, pid }) =>
      pid === undefined ? [] : [{ name, pid }],
    );
    this.saving = this.saving
      .then(() => saveRunRecord(this.options.dataDir, this.url, running))
      .catch(() => {});
  }

  private serverSettings(port: number): ChildSettings {
    const { dataDir, config } = this.options;
    const variables = {
      TENDON_DATA_DIR: dataDir.path,
      TENDON_HOST: config.TENDON_HOST,
      TENDON_PORT: String(port),
    };
    return { variables, secrets: {} };
  }

  private dialSettings(keySetting: string, keyFile: string): ChildSettings {
    return { variables: { ...this.dialVariables(), [keySetting]: this.path(keyFile) }, secrets: {} };
  }

  private dialVariables(): Record<string, string> {
    const caFile = localCaFile(this.options.config);
    return { TENDON_URL: this.url, ...(caFile === undefined ? {} : { TENDON_CA_FILE: caFile }) };
  }

  private async proxySettings(): Promise<ChildSettings> {
    const { environment } = this.options;
    const { variables } = this.dialSettings("TENDON_PROXY_KEY_FILE", "proxy.key");
    variables.TENDON_PROXY_PORT = environment.TENDON_PROXY_PORT || String(await this.choosePort());
    variables.TENDON_PROXY_SEALING_KEY_FILE =
      environment.TENDON_PROXY_SEALING_KEY_FILE || this.path("proxy-sealing.key");
    return { variables, secrets: {} };
  }

  /** Sessions under way know the proxy by its address, so one that crashed comes back there if it can. */
  private async choosePort(): Promise<number> {
    const host = this.options.environment.TENDON_PROXY_HOST || "127.0.0.1";
    this.proxyPort = await keptPort(host, this.proxyPort);
    return this.proxyPort;
  }

  private get handAgentDir(): string {
    return this.options.environment.TENDON_HAND_AGENT_DATA_DIR || this.path("hand-agent");
  }

  private isEnrolled(): boolean {
    return existsSync(join(this.handAgentDir, "identity.json"));
  }

  private async handAgentSettings(): Promise<ChildSettings> {
    const { environment } = this.options;
    const variables = {
      ...this.dialVariables(),
      TENDON_HAND_AGENT_DATA_DIR: this.handAgentDir,
      TENDON_HAND_AGENT_NAME: environment.TENDON_HAND_AGENT_NAME || "local",
    };
    if (this.isEnrolled() || environment.TENDON_JOIN_TOKEN || environment.TENDON_JOIN_TOKEN_FILE) {
      return { variables, secrets: {} };
    }
    const api = await this.connect();
    try {
      const request = { uses: 1, validForMs: JOIN_TOKEN_FOR_MS };
      const { secret } = await api.admin.createJoinToken(request, { deadlineMs: 10_000 });
      return { variables, secrets: { TENDON_JOIN_TOKEN: secret } };
    } finally {
      api.close();
    }
  }

  private async connect(): Promise<Api> {
    const { dataDir, config } = this.options;
    return connectTo(await localTarget(this.url, dataDir, config));
  }

  private async waitUntil(path: "/readyz" | "/healthz", what: string): Promise<void> {
    let failure: ChildFailure | undefined;
    void this.failed.then((first) => {
      failure = first;
    });
    const startedMs = this.clock.monotonicMs();
    let told = "";
    for (;;) {
      const health = await askHealth(this.url, path, localCaFile(this.options.config));
      if (failure !== undefined) throw failureError(failure, this.path("logs"));
      if (this.stopping !== undefined) throw new StartupError("stopped while it started");
      if (health.ok) return;
      const waitedMs = this.clock.monotonicMs() - startedMs;
      const why = health.missing.map(asAwaited).join("; ") || `the ${what} does not answer yet`;
      if (waitedMs > READY_WITHIN_MS)
        throw new StartupError(`not ready in time: ${why}; the logs are in ${this.path("logs")}`);
      if (waitedMs > SAY_WHY_AFTER_MS && why !== told) {
        this.options.note(`Still waiting: ${why}`);
        told = why;
      }
      await this.clock.sleep(POLL_MS);
    }
  }
}

/** What a program said before it ended. */
export function failureError({ name, how, lines }: ChildFailure, logs: string): StartupError {
  const said = lines.map((line) => `\n  ${line}`).join("");
  return new StartupError(
    `the program ${name} ${how}${said === "" ? "" : `:${said}`}\n  (log: ${join(logs, `${name}.log`)})`,
  );
}

/** Where programs on this machine reach a server that listens there. */
export function urlOf(config: CliConfig, port: number): string {
  const isAny = config.TENDON_HOST === "0.0.0.0" || config.TENDON_HOST === "::";
  const host = isAny ? "127.0.0.1" : config.TENDON_HOST;
  const scheme = config.TENDON_TLS_CERT === undefined ? "http" : "https";
  return `${scheme}://${host.includes(":") ? `[${host}]` : host}:${port}`;
}
