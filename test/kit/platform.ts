/**
 * A whole platform for tests: the built programs as processes, an embedded Postgres, a data directory and ports of its own,
 * and a default environment.
 *
 *     const platform = await startPlatform();             // server, harness with the demo model, hand agent
 *     const sessions = platform.client(SessionService);   // as the admin
 *     await platform.stop();                              // fails if a program did not end well
 */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { DescService } from "@bufbuild/protobuf";
import { type Connection, dial } from "../../kit/dial/dial.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { eventually } from "./eventually.ts";
import { freePort } from "./free-port.ts";
import { hasProcesses, type ProgramName, type RunningProgram, startProgram } from "./program.ts";

export type { ProgramName, RunningProgram } from "./program.ts";

export interface PlatformOptions {
  /** Started all at once, after the server. Default: harness and hand-agent. */
  programs?: readonly Exclude<ProgramName, "server">[];
  /** More variables for a program. Without a model key here the demo model answers. */
  env?: Partial<Record<ProgramName, Readonly<Record<string, string>>>>;
  /** The server speaks TLS with this certificate, and everybody trusts that authority. */
  tls?: { readonly caFile: string; readonly certFile: string; readonly keyFile: string };
  /** A directory of the caller's, which `stop` keeps; default is a new one that `stop` removes. */
  dataDir?: string;
}

export interface Platform {
  /** "http://127.0.0.1:port", with TLS "https://…" */
  readonly url: string;
  /** "127.0.0.1:port" */
  readonly address: string;
  readonly dataDir: string;
  readonly adminKey: string;
  /** The newest process of each program. */
  program(name: ProgramName): RunningProgram;
  /** A gRPC client with the admin key. */
  client<S extends DescService>(service: S): Client<S>;
  /**
   * Starts a program, also one that was ended before, and waits until the platform can run sessions with it. `env` holds
   * more variables for this start alone.
   */
  start(name: ProgramName, env?: Readonly<Record<string, string>>): Promise<RunningProgram>;
  /** Everybody's log, for a failed test. */
  logs(): string;
  /** Ends everything. Throws when a program that ran did not end with 0, or left processes. */
  stop(): Promise<void>;
}

const READY_WITHIN_MS = 60_000;

export async function startPlatform(options: PlatformOptions = {}): Promise<Platform> {
  const dataDir = options.dataDir ?? (await mkdtemp(join(tmpdir(), "tendon-platform-")));
  const platform = new TestPlatform(dataDir, options);
  try {
    await platform.start("server");
    const others = options.programs ?? (["harness", "hand-agent"] as const);
    const starting = [...others.map((name) => platform.start(name)), platform.makeDefaultEnvironment()];
    // Nothing is left starting when one of them fails.
    for (const end of await Promise.allSettled(starting)) if (end.status === "rejected") throw end.reason;
    return platform;
  } catch (error) {
    const logs = platform.logs();
    await platform.stop().catch(() => {});
    throw new Error(`the platform did not start: ${(error as Error).message}\n${logs}`, { cause: error });
  }
}

class TestPlatform implements Platform {
  readonly dataDir: string;
  adminKey = "";
  private port = 0;
  private readonly options: PlatformOptions;
  private readonly programs = new Map<ProgramName, RunningProgram>();
  private connection: Connection | undefined;

  constructor(dataDir: string, options: PlatformOptions) {
    this.dataDir = dataDir;
    this.options = options;
  }

  get address(): string {
    return `127.0.0.1:${this.port}`;
  }

  get url(): string {
    return `${this.options.tls === undefined ? "http" : "https"}://${this.address}`;
  }

  program(name: ProgramName): RunningProgram {
    const program = this.programs.get(name);
    if (program === undefined) throw new Error(`${name} was not started`);
    return program;
  }

  client<S extends DescService>(service: S): Client<S> {
    const { url, options } = this;
    this.connection ??= dial({ url, caFile: options.tls?.caFile, token: () => this.adminKey, proxy: {} });
    return this.connection.client(service);
  }

  async start(name: ProgramName, env: Readonly<Record<string, string>> = {}): Promise<RunningProgram> {
    const variables = { ...(await this.environmentOf(name)), ...this.options.env?.[name], ...env };
    // The server may not have noticed yet that the one before has ended.
    const former = this.programs.has(name) ? await this.instances(name).catch(() => []) : [];
    const program = startProgram(name, variables);
    this.programs.set(name, program);
    const died = program.ended.then((how) => {
      throw new Error(`${name} ended with ${how}`);
    });
    died.catch(() => {});
    await Promise.race([this.whenReady(program, former), died]);
    return program;
  }

  /** What `tendon start` makes too; one from an earlier start of the same data directory stays. */
  async makeDefaultEnvironment(): Promise<void> {
    const request = { requestId: "default", spec: { name: "default" }, makeDefault: true };
    await this.client(EnvironmentService).createEnvironment(request, { deadlineMs: 60_000 });
  }

  logs(): string {
    return [...this.programs.values()].map((program) => program.log()).join("");
  }

  async stop(): Promise<void> {
    this.connection?.close();
    const problems: string[] = [];
    const end = async (program: RunningProgram) => {
      const how = await program.end("SIGTERM").catch((error: Error) => error.message);
      // A program that a test killed has said all it will say.
      if (how !== 0 && how !== "SIGKILL") problems.push(`${program.name} ended with ${how}`);
      if (hasProcesses(program)) problems.push(`${program.name} left processes behind`);
    };
    // Those who dial first, then whom they dial.
    const all = [...this.programs.values()];
    await Promise.all(all.filter(({ name }) => name !== "server").map(end));
    await Promise.all(all.filter(({ name }) => name === "server").map(end));
    if (this.options.dataDir === undefined) await rm(this.dataDir, { recursive: true, force: true });
    if (problems.length > 0) throw new Error(`${problems.join("; ")}\n${this.logs()}`);
  }

  private async environmentOf(name: ProgramName): Promise<Record<string, string>> {
    const { tls } = this.options;
    const trust: Record<string, string> = tls === undefined ? {} : { TENDON_CA_FILE: tls.caFile };
    return { ...trust, ...(await this.ownEnvironmentOf(name)) };
  }

  private async ownEnvironmentOf(name: ProgramName): Promise<Record<string, string>> {
    const { tls } = this.options;
    switch (name) {
      case "server":
        // A server that is started again is where the others look for it.
        if (this.port === 0) this.port = await freePort();
        return {
          TENDON_DATA_DIR: this.dataDir,
          TENDON_PORT: String(this.port),
          ...(tls && { TENDON_TLS_CERT: tls.certFile, TENDON_TLS_KEY: tls.keyFile }),
        };
      case "harness":
        return { TENDON_URL: this.url, TENDON_HARNESS_KEY_FILE: join(this.dataDir, "harness.key") };
      case "mcp-proxy":
        return {
          TENDON_URL: this.url,
          TENDON_PROXY_KEY_FILE: join(this.dataDir, "proxy.key"),
          TENDON_PROXY_SEALING_KEY_FILE: join(this.dataDir, "proxy-sealing.key"),
          TENDON_PROXY_PORT: "0",
        };
      case "hand-agent": {
        // The server may just be coming back.
        const { secret } = await eventually(
          () => this.client(AdminService).createJoinToken({}, { deadlineMs: 10_000 }),
          { withinMs: READY_WITHIN_MS },
        );
        return {
          TENDON_URL: this.url,
          TENDON_JOIN_TOKEN: secret,
          TENDON_HAND_AGENT_DATA_DIR: join(this.dataDir, "hand-agent"),
        };
      }
    }
  }

  /** Those that are connected, as far as they have names. */
  private async instances(name: ProgramName): Promise<string[]> {
    if (name !== "harness" && name !== "mcp-proxy") return [];
    const { harnesses, proxies } = await this.client(AdminService).getStatus({}, { deadlineMs: 5_000 });
    return (name === "harness" ? harnesses : proxies).map(({ instanceId }) => instanceId);
  }

  private async whenReady(program: RunningProgram, former: readonly string[]): Promise<void> {
    const within = { withinMs: READY_WITHIN_MS };
    if (program.name === "server") {
      this.port = Number(await eventually(() => /"port":(\d+)/.exec(program.log())?.[1], within));
      // A server that came to a database with an admin writes no key of one; tests give all of them the same.
      this.adminKey =
        this.options.env?.server?.TENDON_ADMIN_KEY ??
        (await readFile(join(this.dataDir, "admin.key"), "utf8")).trim();
      // Its key stands in its database, so whoever answers this is ready.
      await eventually(() => this.client(AdminService).getStatus({}, { deadlineMs: 5_000 }), within);
      return;
    }
    await eventually(async () => {
      if (program.name !== "hand-agent")
        return (await this.instances(program.name)).some((id) => !former.includes(id));
      const { handAgentsOnline } = await this.client(AdminService).getStatus({}, { deadlineMs: 5_000 });
      return handAgentsOnline > 0;
    }, within);
  }
}
