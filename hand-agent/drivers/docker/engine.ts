/**
 * The Docker engine as the driver needs it. Its client is loaded at the first use, so that agents without docker hands
 * do not carry it. Failures are HandErrors in words for people; `EngineError.status` is the engine's own number.
 */
import { access } from "node:fs/promises";
import type { Duplex } from "node:stream";
import type Docker from "dockerode";
import { messageOf } from "../../../kit/errors.ts";
import { HandError } from "../driver.ts";
import { DEFAULT_ENGINE, type EngineSettings, engineAddress } from "./engine-address.ts";

export class EngineError extends HandError {
  /** Undefined when the engine could not be reached. */
  readonly status: number | undefined;

  constructor(message: string, status: number | undefined, options?: ErrorOptions) {
    super(message, options);
    this.status = status;
  }
}

/** Programs with an engine of their own: how a lane is opened by `docker exec`. */
export interface ExecRequest {
  readonly argv: readonly string[];
  readonly workdir: string;
}

const MAX_MESSAGE_CHARS = 1_000;

export class Engine {
  private readonly settings: EngineSettings;
  private client: Promise<Docker> | undefined;
  private dir: Promise<string> | undefined;

  constructor(settings: EngineSettings) {
    this.settings = settings;
  }

  get address(): string {
    return this.settings.host || DEFAULT_ENGINE;
  }

  /** Asks the engine and puts what it refuses into words. */
  async ask<T>(what: string, use: (docker: Docker) => Promise<T>): Promise<T> {
    this.client ??= this.connect();
    this.client.catch(() => {
      this.client = undefined;
    });
    const docker = await this.client;
    try {
      return await use(docker);
    } catch (error) {
      throw this.inWords(what, error);
    }
  }

  /** The same, with undefined for what the engine does not have. */
  async find<T>(what: string, use: (docker: Docker) => Promise<T>): Promise<T | undefined> {
    try {
      return await this.ask(what, use);
    } catch (error) {
      if (error instanceof EngineError && error.status === 404) return undefined;
      throw error;
    }
  }

  /** Where the engine keeps its files, on its own machine. */
  rootDir(): Promise<string> {
    this.dir ??= this.ask("describe itself", async (docker) => {
      const { DockerRootDir: dir } = (await docker.info()) as { DockerRootDir: string };
      return dir;
    });
    this.dir.catch(() => {
      this.dir = undefined;
    });
    return this.dir;
  }

  /** A connection to the first process of a container, also of one that has not started yet. */
  attach(containerId: string): Promise<Duplex> {
    return this.ask("attach to the container", async (docker) => {
      const options = { stream: true, hijack: true, stdin: true, stdout: true, stderr: true };
      return (await docker.getContainer(containerId).attach(options)) as unknown as Duplex;
    });
  }

  /** A new process in a container, as the container's user. */
  exec(containerId: string, { argv, workdir }: ExecRequest): Promise<Duplex> {
    return this.ask("start a process in the container", async (docker) => {
      const exec = await docker.getContainer(containerId).exec({
        Cmd: [...argv],
        AttachStdin: true,
        AttachStdout: true,
        AttachStderr: true,
        WorkingDir: workdir,
      });
      return exec.start({ hijack: true, stdin: true });
    });
  }

  private async connect(): Promise<Docker> {
    const address = engineAddress(this.settings);
    // The client is 10 MB of memory: not for an agent on a machine without an engine.
    if ("socketPath" in address) await access(address.socketPath).catch((error) => this.unreachable(error));
    const { default: Client } = await import("dockerode");
    return new Client(address);
  }

  private inWords(what: string, error: unknown): Error {
    if (error instanceof HandError) return error;
    const { statusCode, code, reason, json } = error as EngineFailure;
    if (statusCode !== undefined) {
      // Of answers that are streams the client has the engine's words in its message alone.
      const [, cause] = /^\(HTTP code \d+\) .*? - (.*\S)/s.exec(messageOf(error)) ?? [];
      const said = json?.message ?? cause ?? reason ?? messageOf(error);
      return new EngineError(`could not ${what}: ${said.slice(0, MAX_MESSAGE_CHARS)}`, statusCode);
    }
    return this.away(code ?? messageOf(error), error);
  }

  private unreachable(error: NodeJS.ErrnoException): never {
    throw this.away(error.code ?? messageOf(error), error);
  }

  private away(why: string, cause: unknown): EngineError {
    const message = `the Docker engine at ${this.address} cannot be reached (${why})`;
    return new EngineError(message, undefined, { cause });
  }
}

/** What docker-modem's errors carry. */
interface EngineFailure {
  readonly statusCode?: number;
  readonly reason?: string;
  readonly json?: { readonly message?: string } | null;
  /** Of the operating system. */
  readonly code?: string;
}
