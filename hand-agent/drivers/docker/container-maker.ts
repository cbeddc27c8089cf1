/** Makes, starts and removes the containers of units. Whoever asks for one has noted its unit before. */
import type { Container } from "dockerode";
import type { Clock } from "../../../kit/clock.ts";
import type { Relay, Relays } from "../../relay/relay.ts";
import { relayVariables } from "../../relay/relay.ts";
import { HandError, type OutsideTurn } from "../driver.ts";
import { ContainerLink } from "./container-link.ts";
import {
  type ContainerRecipe,
  OUTPUTS_DIR,
  PIPES_DIR,
  planContainer,
  processLimitOf,
  UNIT_VARIABLE,
} from "./container-plan.ts";
import { type Engine, EngineError } from "./engine.ts";
import type { HandsNetwork } from "./hands-network.ts";
import { imageById, missingImage, pullImage } from "./images.ts";
import { type MountedVolume, openMountsVolume } from "./mounts-volume.ts";
import { blockMetadata } from "./network-rules.ts";
import type { RegistryCredentials } from "./registry-credentials.ts";
import { networkOfRuntime } from "./runtime-network.ts";
import { haveVolumes, makeDirectories, removeVolumes } from "./workspace-volumes.ts";

export interface Unit {
  readonly unit: string;
  readonly recipe: ContainerRecipe;
  /** Of the container. */
  readonly name: string;
}

export interface MakeOptions {
  readonly pull?: boolean;
  readonly onProgress?: ((detail: string) => void) | undefined;
  /** For a pull. */
  readonly outsideTurn?: OutsideTurn | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface RunningContainer {
  readonly containerId: string;
  readonly link: ContainerLink;
  /** Undefined for a hand without mounts. */
  readonly mounted?: MountedVolume;
}

export interface ContainerMakerOptions {
  readonly engine: Engine;
  readonly agentId: () => Promise<string>;
  readonly installationId: () => string;
  readonly network: HandsNetwork;
  /** Ways out for hands with the network `limited`; without them such hands are refused. */
  readonly relays: Relays | undefined;
  readonly credentials: RegistryCredentials;
  readonly clock: Clock;
}

export class ContainerMaker {
  private readonly options: ContainerMakerOptions;

  constructor(options: ContainerMakerOptions) {
    this.options = options;
  }

  /** A new unit: volumes and container. Rejects with HandError; what it has left by then is removed by `remove`. */
  make(unit: Unit, options: MakeOptions): Promise<RunningContainer> {
    return this.run(unit, true, options);
  }

  /** A container around the volumes of before; "gone" when those are not there any more. */
  async makeAgain(unit: Unit, options: MakeOptions): Promise<RunningContainer | "gone"> {
    const { engine } = this.options;
    await this.removeContainers(unit.unit);
    if (!(await haveVolumes(engine, unit.unit, unit.recipe))) return "gone";
    return this.run(unit, false, options);
  }

  /** The image is there afterwards. Rejects with HandError. */
  async ensureImage(image: string, options: MakeOptions): Promise<void> {
    const { engine } = this.options;
    const found = await engine.find("look for the image", (docker) => docker.getImage(image).inspect());
    if (found !== undefined) return;
    if (options.pull !== true) throw missingImage(image);
    await this.pull(image, options);
  }

  private pull(image: string, options: MakeOptions): Promise<void> {
    const { engine, clock, credentials } = this.options;
    const { onProgress = () => {}, outsideTurn = (work) => work(), signal } = options;
    return outsideTurn(() => pullImage(engine, image, { onProgress, clock, signal, credentials }));
  }

  /** Ends everything of the unit and keeps its files. Idempotent. */
  async removeContainers(unit: string): Promise<void> {
    const { engine } = this.options;
    const { agentId } = await this.owner(unit);
    const found = await engine.ask("list containers", (docker) =>
      docker.listContainers({
        all: true,
        filters: { label: [`tendon.unit=${unit}`, `tendon.agent=${agentId}`] },
      }),
    );
    for (const { Id: id } of found) await this.removeContainer(id);
  }

  async removeContainer(id: string): Promise<void> {
    await this.options.engine.find("remove the container", (docker) =>
      docker.getContainer(id).remove({ force: true, v: true }),
    );
  }

  /** Removes everything of the unit. Idempotent. */
  async remove({ unit, recipe }: Pick<Unit, "unit" | "recipe">): Promise<void> {
    await this.removeContainers(unit);
    await removeVolumes(this.options.engine, unit, recipe);
    if (recipe.network.mode === "unrestricted") await this.options.network.removeIfUnused();
  }

  /** Gives a container another name; fails when that is taken. */
  async rename(containerId: string, name: string): Promise<void> {
    await this.options.engine.ask("name the container", (docker) =>
      docker.getContainer(containerId).rename({ name }),
    );
  }

  private async run(unit: Unit, isNew: boolean, options: MakeOptions): Promise<RunningContainer> {
    options.signal?.throwIfAborted();
    const { mode } = unit.recipe.network;
    await this.checkNetwork(unit.recipe);
    if (mode !== "unrestricted") return this.runOn("none", unit, isNew, options);
    const { network } = this.options;
    try {
      return await this.runOn(await network.use(), unit, isNew, options);
    } finally {
      network.started();
    }
  }

  private async runOn(
    networkName: string,
    unit: Unit,
    isNew: boolean,
    options: MakeOptions,
  ): Promise<RunningContainer> {
    const { engine, clock } = this.options;
    const containerId = await this.create(unit, networkName, options);
    let relay: Relay | undefined;
    try {
      const container = await engine.ask("find the container", async (docker) =>
        docker.getContainer(containerId),
      );
      if (isNew) await this.makeDirectories(unit, container);
      const { mounts } = unit.recipe;
      const mounted = mounts && (await openMountsVolume(engine, unit.unit, mounts));
      const link = await ContainerLink.start(
        {
          engine,
          containerId,
          workdir: unit.recipe.workdir,
          processLimit: processLimitOf(unit.recipe),
          outputsDir: OUTPUTS_DIR,
          pipesDir: PIPES_DIR,
          clock,
        },
        {
          run: () => engine.ask("start the container", async () => void (await container.start())),
          prepare: async () => {
            relay = await this.openNetwork(unit, containerId, options.signal);
          },
        },
      );
      void link.ended.then(() => relay?.close());
      options.signal?.throwIfAborted();
      return { containerId, link, ...(mounted && { mounted }) };
    } catch (error) {
      await relay?.close();
      await this.removeContainer(containerId).catch(() => {});
      throw error;
    }
  }

  private async makeDirectories({ unit, recipe }: Unit, container: Container): Promise<void> {
    const { engine } = this.options;
    for (const { target, tar } of await makeDirectories(await engine.rootDir(), unit, recipe.workdir)) {
      await engine.ask("make the hand's directories", () => container.putArchive(tar, { path: target }));
    }
  }

  private async create(unit: Unit, networkName: string, options: MakeOptions): Promise<string> {
    const { engine } = this.options;
    const { image, network } = unit.recipe;
    const plan = planContainer(unit.recipe, {
      ...(await this.owner(unit.unit)),
      name: unit.name,
      networkName,
      extraEnv: network.mode === "limited" ? relayVariables() : {},
    });
    const create = (from = image) =>
      engine.ask(
        "make the container",
        async (docker) => (await docker.createContainer({ ...plan, Image: from })).id,
      );
    try {
      return await create();
    } catch (error) {
      if (!isMissingImage(error)) throw error;
      const id = await imageById(engine, image);
      if (id !== undefined) return create(id);
      if (options.pull !== true) throw missingImage(image);
    }
    await this.pull(image, options);
    return create();
  }

  private async checkNetwork({ network, runtime }: ContainerRecipe): Promise<void> {
    if (network.mode === "none") return;
    const kind = await networkOfRuntime(this.options.engine, runtime);
    if (kind === "own")
      throw new HandError(
        `the network mode ${network.mode} is not kept by ${runtime === undefined ? "the engine's default runtime" : `the runtime ${runtime}`}, which has a network of its own: neither the relay nor the rules against metadata services are in it; use none, or for limited a runsc that the engine starts with --network=host`,
      );
    if (network.mode === "unrestricted" && kind === "passed_on")
      throw new HandError(`the network mode unrestricted is not offered with gVisor; use limited or none`);
    if (network.mode === "unrestricted" && network.tunnels === undefined) return;
    const what =
      network.mode === "limited" ? "the network mode limited" : "a session's repository with this network";
    const { relays } = this.options;
    if (relays === undefined) throw new HandError(`this hand agent has no relay for ${what}`);
    const probe = await relays.probe();
    if (!probe.available) throw new HandError(`${what} is not possible here: ${probe.reason}`);
  }

  /** Before the first process of the hand; the container runs, and nothing in it but a lane. */
  private async openNetwork(
    { unit, recipe }: Unit,
    containerId: string,
    signal: AbortSignal | undefined,
  ): Promise<Relay | undefined> {
    const { network } = recipe;
    if (network.mode === "none") return undefined;
    const { engine, clock, relays } = this.options;
    const { State: state, NetworkSettings: settings } = await engine.ask("look at the container", (docker) =>
      docker.getContainer(containerId).inspect(),
    );
    const namespace = { pid: state.Pid };
    const { tunnels } = network;
    if (network.mode === "limited") {
      const { allowedHosts } = network;
      return relays?.start({ handId: unit, namespace, allowedHosts, tunnels, signal });
    }
    const gateways = Object.values(settings.Networks).flatMap(({ Gateway, IPv6Gateway }) =>
      [Gateway, IPv6Gateway].filter((address) => address !== ""),
    );
    await blockMetadata({ pid: state.Pid, mark: `${UNIT_VARIABLE}=${unit}`, gateways, clock });
    if (tunnels === undefined) return undefined;
    return relays?.start({ handId: unit, namespace, allowedHosts: [], tunnels, signal });
  }

  private async owner(unit: string) {
    return { unit, agentId: await this.options.agentId(), installationId: this.options.installationId() };
  }
}

function isMissingImage(error: unknown): boolean {
  return error instanceof EngineError && error.status === 404 && /no such image/i.test(error.message);
}
