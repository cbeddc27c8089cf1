/** A real registry of images (Debian's docker-registry) on loopback, which asks for a user and a password. */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestEngine, whyNoDocker } from "./docker.ts";
import { eventually } from "./eventually.ts";
import { freePort } from "./free-port.ts";

const PROGRAM = "/usr/bin/docker-registry";
export const REGISTRY_USER = "puller";
export const REGISTRY_PASSWORD = "pull-secret-7c1";
/** The password as htpasswd keeps it (bcrypt). */
const USERS = `${REGISTRY_USER}:$2y$05$F3FBLM2N05eA4LxcDZpIPuX7eiy8f6dfo2G7lMEHh4xnthqrvRgSe\n`;

/** Why this machine cannot run it; undefined where it can. */
export function whyNoRegistry(): string | undefined {
  return (
    whyNoDocker() ??
    (existsSync(PROGRAM) ? undefined : `${PROGRAM} is not there (Debian's package docker-registry)`)
  );
}

export class DockerRegistry {
  /** Host and port, as images name it. */
  readonly host: string;
  private readonly dir: string;
  private readonly child: ChildProcess;
  private readonly ended: Promise<unknown>;

  private constructor(host: string, dir: string, child: ChildProcess) {
    this.host = host;
    this.dir = dir;
    this.child = child;
    this.ended = new Promise((resolve) => child.once("close", resolve));
  }

  static async start(): Promise<DockerRegistry> {
    const dir = await mkdtemp(join(tmpdir(), "tendon-registry-"));
    const port = await freePort();
    const users = join(dir, "htpasswd");
    await writeFile(users, USERS, { mode: 0o600 });
    const config = {
      version: "0.1",
      log: { level: "error", accesslog: { disabled: true } },
      storage: { filesystem: { rootdirectory: join(dir, "data") } },
      http: { addr: `127.0.0.1:${port}`, secret: "of this test" },
      auth: { htpasswd: { realm: "test", path: users } },
    };
    // JSON is YAML too.
    await writeFile(join(dir, "config.yml"), JSON.stringify(config));
    const child = spawn(PROGRAM, ["serve", join(dir, "config.yml")], { stdio: "ignore" });
    const registry = new DockerRegistry(`127.0.0.1:${port}`, dir, child);
    await eventually(() => asksForUsers(port)).catch(async (error) => {
      await registry.stop();
      throw error;
    });
    return registry;
  }

  /** A config.json with these credentials for this registry; replaced when it is there. */
  async writeAuth(path: string, password: string): Promise<void> {
    const auth = Buffer.from(`${REGISTRY_USER}:${password}`).toString("base64");
    await writeFile(path, JSON.stringify({ auths: { [this.host]: { auth } } }), { mode: 0o600 });
  }

  /** Puts an image of the engine there, under the name that it gives, and takes that name from the engine. */
  async push(engine: TestEngine, image: string): Promise<string> {
    const name = `${this.host}/private/image:1`;
    const config = join(this.dir, "docker");
    await mkdir(config, { recursive: true });
    await this.writeAuth(join(config, "config.json"), REGISTRY_PASSWORD);
    await engine.docker("tag", image, name);
    await engine.docker("--config", config, "push", "--quiet", name);
    await engine.docker("rmi", name);
    return name;
  }

  async stop(): Promise<void> {
    this.child.kill("SIGKILL");
    await this.ended;
    await rm(this.dir, { recursive: true, force: true });
  }
}

function asksForUsers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const call = request({ host: "127.0.0.1", port, path: "/v2/", timeout: 20_000 }, (response) => {
      response.resume();
      resolve(response.statusCode === 401);
    });
    call.on("error", () => resolve(false));
    call.on("timeout", () => call.destroy());
    call.end();
  });
}
