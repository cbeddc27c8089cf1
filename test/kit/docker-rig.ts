/** A docker driver over a real engine, with a data directory of its own; everything that it made is gone after `stop`. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DockerDriver, type DockerDriverOptions } from "../../hand-agent/drivers/docker/docker-driver.ts";
import type { ContainerSpec, Driver, Hand, HandSpec } from "../../hand-agent/drivers/driver.ts";
import { TOOL_DEFINITIONS } from "../../hand-agent/tools/registry.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { type TestEngine, useDocker } from "./docker.ts";
import { ensureNodeImage } from "./docker-images.ts";

export class DockerRig {
  readonly engine: TestEngine;
  readonly dataDir: string;
  readonly driver: DockerDriver;
  /** The same driver, for callers that name no image. */
  readonly withImage: Driver;
  readonly image: string;
  private readonly isShared: boolean;

  private constructor(
    engine: TestEngine,
    dataDir: string,
    image: string,
    options: Partial<DockerDriverOptions>,
    isShared: boolean,
  ) {
    this.engine = engine;
    this.dataDir = dataDir;
    this.image = image;
    this.isShared = isShared;
    this.driver = new DockerDriver({
      dataDir,
      clock: systemClock,
      log: createLogger("test", "silent"),
      tools: TOOL_DEFINITIONS,
      engine: { host: engine.host },
      installationId: () => "inst_test",
      ...options,
    });
    this.withImage = withContainer(this.driver, { image, pull: false });
  }

  static async start(
    options: Partial<DockerDriverOptions> = {},
    own?: TestEngine,
    ensureImage = ensureNodeImage,
  ): Promise<DockerRig> {
    const engine = own ?? (await useDocker());
    const image = await ensureImage(engine);
    return new DockerRig(engine, await mkdtemp(join(tmpdir(), "tendon-docker-")), image, options, false);
  }

  /** The same driver, for callers that say nothing of containers. */
  withContainer(container: Partial<ContainerSpec>): Driver {
    return withContainer(this.driver, { image: this.image, pull: false, ...container });
  }

  /** Another agent: on the same engine, with the same data directory where it is this one's next life. */
  async another(options: { sameData?: boolean } & Partial<DockerDriverOptions> = {}): Promise<DockerRig> {
    const { sameData = false, ...rest } = options;
    const dataDir = sameData ? this.dataDir : await mkdtemp(join(tmpdir(), "tendon-docker-"));
    return new DockerRig(this.engine, dataDir, this.image, rest, true);
  }

  provision(
    handId: string,
    spec: Omit<Partial<HandSpec>, "container"> & { container?: Partial<ContainerSpec> } = {},
  ): Promise<Hand> {
    const container = { image: this.image, pull: false, ...spec.container };
    return this.driver.provision({ ...spec, handId, container });
  }

  /** Everything on the engine that carries this agent's label: names of containers, volumes and networks. */
  async made(): Promise<string[]> {
    const label = `label=tendon.agent=${await this.agentId()}`;
    const texts = await Promise.all([
      this.engine.docker("ps", "--all", "--filter", label, "--format", "{{.Names}}"),
      this.engine.docker("volume", "ls", "--filter", label, "--format", "{{.Name}}"),
      this.engine.docker("network", "ls", "--filter", label, "--format", "{{.Name}}"),
    ]);
    return texts.flatMap((text) => text.split("\n").filter((name) => name !== ""));
  }

  async agentId(): Promise<string> {
    return (await readFile(join(this.dataDir, "docker", "agent-id"), "utf8").catch(() => "none")).trim();
  }

  /** Throws when something was left on the engine. */
  async stop(): Promise<void> {
    await this.driver.close();
    for (const handId of await this.driver.listHandIds()) await this.driver.discard(handId);
    await this.driver.close();
    const left = await this.made();
    if (!this.isShared) await this.engine.release();
    await rm(this.dataDir, { recursive: true, force: true });
    if (left.length > 0) throw new Error(`left on the engine: ${left.join(", ")}`);
  }
}

function withContainer(driver: DockerDriver, container: ContainerSpec): Driver {
  return {
    name: driver.name,
    capabilities: driver.capabilities,
    tools: driver.tools,
    probe: () => driver.probe(),
    provision: (spec, signal) => driver.provision({ container, ...spec }, signal),
    recover: (handle, signal) => driver.recover(handle, signal),
    discard: (handId) => driver.discard(handId),
    listHandIds: () => driver.listHandIds(),
  };
}
