/**
 * What a design in one container has to do before it can ask a model: make the container, clone the repository into it, and
 * start the agent's process there. Done on the same engine and from the same git server as what it is compared with.
 */
import { execFile, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import Docker from "dockerode";
import { eventually } from "../../test/kit/eventually.ts";
import { freePort } from "../../test/kit/free-port.ts";
import type { BenchContext } from "./bench.ts";

const run = promisify(execFile);
const REPOSITORY_BYTES = 5 * 1024 * 1024;
const FILES = 50;

/** A git server on this machine with one repository of 5 MB that no compression makes smaller; gives its URL. */
export async function startGitServer(context: BenchContext): Promise<string> {
  const base = await mkdtemp(join(tmpdir(), "tendon-bench-git-"));
  context.defer(() => rm(base, { recursive: true, force: true }));
  const repository = join(base, "repository");
  await mkdir(repository);
  const git = (...args: string[]) => run("git", ["-C", repository, ...args]);
  await git("init", "--quiet", "--initial-branch", "main");
  for (let n = 0; n < FILES; n++) {
    await writeFile(join(repository, `file-${n}.bin`), randomBytes(REPOSITORY_BYTES / FILES));
  }
  await git("add", ".");
  const as = ["-c", "user.name=bench", "-c", "user.email=bench@example.com"];
  await git(...as, "commit", "--quiet", "--message", "all");
  const port = await freePort();
  const daemon = spawn(
    "git",
    [
      "daemon",
      // As many as ask: by itself it serves 32 at a time and hangs up on the rest.
      "--max-connections=0",
      "--reuseaddr",
      "--export-all",
      "--listen=127.0.0.1",
      `--port=${port}`,
      `--base-path=${base}`,
      base,
    ],
    { stdio: "ignore" },
  );
  context.defer(() => void daemon.kill("SIGKILL"));
  const url = `git://127.0.0.1:${port}/repository`;
  await eventually(() => run("git", ["ls-remote", url]), { withinMs: 10_000 });
  return url;
}

export class OneContainer {
  private readonly docker: Docker;
  private readonly image: string;
  private readonly gitUrl: string;
  private readonly folder: string;
  private readonly made: Docker.Container[] = [];

  private constructor(docker: Docker, image: string, gitUrl: string, folder: string) {
    this.docker = docker;
    this.image = image;
    this.gitUrl = gitUrl;
    this.folder = folder;
  }

  static async create(
    context: BenchContext,
    { socketPath, image, gitUrl }: { socketPath: string; image: string; gitUrl: string },
  ): Promise<OneContainer> {
    const folder = await mkdtemp(join(tmpdir(), "tendon-bench-work-"));
    context.defer(() => rm(folder, { recursive: true, force: true, maxRetries: 50, retryDelay: 100 }));
    const one = new OneContainer(new Docker({ socketPath }), image, gitUrl, folder);
    context.defer(() => one.remove());
    return one;
  }

  /** Resolves when a process inside would ask its model. */
  async prepare(name: string): Promise<void> {
    const work = join(this.folder, name);
    await mkdir(work);
    await chmod(work, 0o777);
    const container = await this.docker.createContainer({
      Image: this.image,
      Cmd: ["sleep", "86400"],
      HostConfig: { NetworkMode: "none", Binds: [`${work}:/work`] },
    });
    this.made.push(container);
    await container.start();
    await this.clone(work);
    const exec = await container.exec({
      Cmd: ["node", "--eval", "console.log(1)"],
      AttachStdout: true,
      WorkingDir: "/work",
    });
    const stream = await exec.start({});
    await new Promise((resolve, reject) => {
      stream.once("data", resolve);
      stream.once("error", reject);
      stream.once("end", resolve);
    });
    stream.destroy();
  }

  /**
   * Into the folder that the container has as its own: what it costs inside, without a network to be made for it.
   * `processors`: where it runs, as `taskset` wants them.
   */
  async clone(into: string, processors?: string): Promise<void> {
    const clone = ["git", "clone", "--quiet", this.gitUrl, join(into, "repository")] as const;
    if (processors === undefined) await run(clone[0], clone.slice(1));
    else await run("taskset", ["--cpu-list", processors, ...clone]);
  }

  /** A folder of the bench's own, for clones without a container. */
  async newFolder(name: string): Promise<string> {
    const folder = join(this.folder, name);
    await mkdir(folder);
    return folder;
  }

  private async remove(): Promise<void> {
    for (const container of this.made.splice(0)) await container.remove({ force: true }).catch(() => {});
  }
}
