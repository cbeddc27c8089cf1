/**
 * The driver that runs hands as containers of a Docker engine.
 *
 * A hand is a unit: volumes with its files, and a container around them. Whatever becomes of the container (parked,
 * killed from outside, gone with its engine), the next one is made around the same volumes from the hand's record; only
 * when those are gone the hand is. Nothing of the container itself is kept: its root is read-only.
 */
import { randomBytes } from "node:crypto";
import { availableParallelism } from "node:os";
import { type Clock, within } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import type { Logger } from "../../../kit/log.ts";
import type { Relays } from "../../relay/relay.ts";
import {
  type DestroyReport,
  type Driver,
  type DriverCapabilities,
  type Hand,
  HandError,
  type HandSpec,
  type JsonValue,
  type OutsideTurn,
  type ProbeResult,
  type ToolDefinition,
} from "../driver.ts";
import { putResources } from "../put-resources.ts";
import { checkDockerSpec, handIdOf, recipeOf } from "./check-spec.ts";
import { ContainerMaker, type RunningContainer } from "./container-maker.ts";
import { DockerHand } from "./docker-hand.ts";
import { Engine } from "./engine.ts";
import type { EngineSettings } from "./engine-address.ts";
import { type DockerRecord, HAND_ID, HandRecords } from "./hand-records.ts";
import { HandsNetwork } from "./hands-network.ts";
import { imageNames } from "./images.ts";
import { PackageImages } from "./package-images.ts";
import { type RegistryAuthOptions, RegistryCredentials } from "./registry-credentials.ts";
import { tidyEngine } from "./tidy-engine.ts";
import { type WarmHand, type WarmKind, WarmPools } from "./warm-pool.ts";

const LIST_WITHIN_MS = 5_000;

export interface DockerDriverOptions {
  readonly dataDir: string;
  readonly clock: Clock;
  readonly log: Logger;
  readonly tools: readonly ToolDefinition[];
  readonly engine: EngineSettings;
  /** That the agent belongs to, for labels; empty before it has joined one. */
  readonly installationId: () => string;
  readonly relays?: Relays | undefined;
  /** Credentials for pulling images; without it there are none. */
  readonly registryAuth?: RegistryAuthOptions;
}

/** A unit that waits for its hand. */
interface WarmUnit extends WarmHand {
  readonly hand: DockerHand;
  readonly record: DockerRecord;
}

export class DockerDriver implements Driver {
  readonly name = "docker";
  readonly capabilities: DriverCapabilities = {
    park: true,
    limits: ["memoryBytes", "cpus", "processes", "tmpBytes"],
    network: "configurable",
    containers: true,
    mounts: true,
  };
  readonly tools: readonly ToolDefinition[];
  /** Each keeps a core of the engine busy; more at once are all late instead of some. */
  readonly provisionsAtOnce = Math.max(2, availableParallelism());
  private readonly options: DockerDriverOptions;
  private readonly engine: Engine;
  private readonly records: HandRecords;
  private readonly maker: ContainerMaker;
  private readonly network: HandsNetwork;
  private readonly warm: WarmPools<WarmUnit>;
  private readonly packages: PackageImages;
  private readonly live = new Map<string, Promise<DockerHand>>();
  /** Hands on their way out: who asks for one of them waits until it is over. */
  private readonly ending = new Map<string, Promise<unknown>>();
  private tidied: Promise<void> | undefined;

  constructor(options: DockerDriverOptions) {
    const { dataDir, clock, log, installationId, relays, registryAuth } = options;
    this.options = options;
    this.tools = options.tools;
    this.engine = new Engine(options.engine);
    this.records = new HandRecords(dataDir);
    const agentId = () => this.records.agentId();
    this.network = new HandsNetwork(this.engine, agentId, installationId, clock);
    this.maker = new ContainerMaker({
      engine: this.engine,
      agentId,
      installationId,
      network: this.network,
      relays,
      credentials: new RegistryCredentials(registryAuth ?? { file: "", helperEnv: {} }, clock),
      clock,
    });
    this.warm = new WarmPools(clock, log);
    this.packages = new PackageImages({ engine: this.engine, agentId, clock, log });
  }

  async probe(): Promise<ProbeResult> {
    try {
      const info = (await this.engine.ask("describe itself", (docker) => docker.info())) as EngineInfo;
      if (info.OSType !== "linux")
        return { available: false, reason: `the engine runs ${info.OSType} containers` };
      const runtime = info.DefaultRuntime ?? "runc";
      return {
        available: true,
        isolation: `docker+${runtime}`,
        detail: `containers of Docker ${info.ServerVersion} by ${runtime}, without capabilities, on a read-only root; a runtime such as runsc, named by the environment, is stronger`,
      };
    } catch (error) {
      return { available: false, reason: messageOf(error) };
    }
  }

  images(): Promise<string[]> {
    return within(
      this.options.clock,
      LIST_WITHIN_MS,
      imageNames(this.engine),
      () => new HandError("no answer"),
    );
  }

  async provision(spec: HandSpec, signal?: AbortSignal): Promise<Hand> {
    await this.ending.get(spec.handId);
    const living = this.live.get(spec.handId);
    if (living) return living;
    return this.keep(spec.handId, async () => {
      checkDockerSpec(spec);
      signal?.throwIfAborted();
      await this.tidy();
      const before = await this.records.read(spec.handId);
      if (before !== undefined) {
        const found = await this.resume(before, signal);
        if (found !== "gone") return found;
        await this.removeLeftovers(spec.handId);
      }
      try {
        const hand = await this.create(await this.withPackages(spec, signal), signal);
        await putResources(hand, spec, signal);
        signal?.throwIfAborted();
        return hand;
      } catch (error) {
        await this.removeLeftovers(spec.handId).catch((err) =>
          this.options.log.warn({ err, hand: spec.handId }, "a hand that was not made left something"),
        );
        throw error;
      }
    });
  }

  async recover(handle: JsonValue, signal?: AbortSignal): Promise<Hand | "gone"> {
    const handId = handIdOf(handle);
    await this.ending.get(handId);
    const record = await this.records.read(handId);
    const living = this.live.get(handId);
    if (living) return living;
    if (record === undefined) return "gone";
    let isGone = false;
    const hand = this.keep(handId, async () => {
      const found = await this.resume(record, signal);
      if (found !== "gone") return found;
      isGone = true;
      throw new HandError("the hand's workspace is gone");
    });
    return hand.catch((error) => {
      if (isGone) return "gone";
      throw error;
    });
  }

  async discard(handId: string): Promise<DestroyReport> {
    if (!HAND_ID.test(handId)) return { left: [] };
    await this.ending.get(handId);
    const living = await this.live.get(handId)?.catch(() => undefined);
    if (living) return living.destroy();
    await this.removeLeftovers(handId);
    return { left: [] };
  }

  async listHandIds(): Promise<string[]> {
    await this.tidy().catch((error) =>
      this.options.log.warn(`leftovers were not removed: ${messageOf(error)}`),
    );
    return this.records.list();
  }

  /** Removes what is no hand: those made ahead, and the network that nobody uses. */
  async close(): Promise<void> {
    await this.warm.close();
    await this.packages.close();
    if (this.tidied !== undefined) await this.network.removeIfUnused().catch(() => {});
  }

  /** From an image that has what the environment wants installed; that costs the machine a turn of its own. */
  private async withPackages(spec: HandSpec, signal: AbortSignal | undefined): Promise<HandSpec> {
    const { container, onProgress = () => {} } = spec;
    if (!container?.packages) return spec;
    const outsideTurn: OutsideTurn = spec.outsideTurn ?? ((work) => work());
    const { packages, ...rest } = container;
    await this.maker.ensureImage(container.image, { pull: container.pull, onProgress, outsideTurn, signal });
    const image = await outsideTurn(() =>
      this.packages.prepare(container.image, packages, { signal, onProgress }),
    );
    return { ...spec, container: { ...rest, image } };
  }

  private async create(spec: HandSpec, signal: AbortSignal | undefined): Promise<DockerHand> {
    const recipe = recipeOf(spec);
    const kind = this.warmKind(spec, recipe);
    const claimed = kind === undefined ? undefined : this.warm.claim(kind);
    try {
      if (claimed !== undefined) return await this.claim(claimed, spec.handId);
      const record: DockerRecord = { version: 1, handId: spec.handId, unit: newUnit(), recipe };
      await this.records.write(record);
      const unit = { unit: record.unit, recipe, name: `tendon-${spec.handId}` };
      const pull = spec.container?.pull === true;
      const { onProgress, outsideTurn } = spec;
      const container = await this.maker.make(unit, { pull, onProgress, outsideTurn, signal });
      return this.handOf(record, container, { resumed: false, isSetUp: false });
    } finally {
      if (kind !== undefined) this.warm.refillSoon(kind.key);
    }
  }

  /** Its record comes first: whoever finds it after a crash knows whose it is. */
  private async claim({ hand, record }: WarmUnit, handId: string): Promise<DockerHand> {
    const claimed: DockerRecord = { ...record, handId };
    await this.records.write(claimed);
    const container = await hand.handOver();
    // For people who look at the engine; nobody waits for it.
    this.maker
      .rename(container.containerId, `tendon-${handId}`)
      .catch((error) => this.options.log.warn(`a container kept its name: ${messageOf(error)}`));
    return this.handOf(claimed, container, { resumed: false, isSetUp: true });
  }

  /** Not for hands whose resources have to be there before the setup. */
  private warmKind(spec: HandSpec, recipe: DockerRecord["recipe"]): WarmKind<WarmUnit> | undefined {
    const { warm, container } = spec;
    if (warm === undefined || warm.size < 1) return undefined;
    if (warm.setup.key !== "" && (spec.resources?.length ?? 0) > 0) return undefined;
    return {
      key: JSON.stringify([recipe, warm.setup.key]),
      size: warm.size,
      maxAgeMs: warm.maxAgeMs,
      make: async (signal) => {
        const unit = newUnit();
        const record: DockerRecord = { version: 1, handId: `warm-${unit}`, unit, recipe };
        try {
          const pull = container?.pull === true;
          const made = await this.maker.make({ unit, recipe, name: `tendon-warm-${unit}` }, { pull, signal });
          const hand = this.handOf(record, made, { resumed: false, isSetUp: true });
          await warm.setup.run(hand, signal);
          return {
            hand,
            record,
            get isUsable() {
              return made.link.isOpen;
            },
            destroy: () => hand.destroy(),
          };
        } catch (error) {
          await this.maker.remove({ unit, recipe }).catch(() => {});
          throw error;
        }
      },
    };
  }

  private async resume(record: DockerRecord, signal: AbortSignal | undefined): Promise<DockerHand | "gone"> {
    const container = await this.makeAgain(record, signal);
    if (container === "gone") return "gone";
    return this.handOf(record, container, { resumed: true, isSetUp: true });
  }

  private makeAgain(record: DockerRecord, signal?: AbortSignal): Promise<RunningContainer | "gone"> {
    const { unit, recipe, handId } = record;
    return this.maker.makeAgain({ unit, recipe, name: `tendon-${handId}` }, { signal });
  }

  private handOf(
    record: DockerRecord,
    container: RunningContainer,
    state: { resumed: boolean; isSetUp: boolean },
  ): DockerHand {
    const { handId, unit, recipe } = record;
    const { clock, log } = this.options;
    return new DockerHand({
      record,
      container,
      ...state,
      isolation: `docker+${recipe.runtime ?? "default"}`,
      makeAgain: () => this.makeAgain(record),
      removeContainer: () => this.maker.removeContainers(unit),
      removeAll: async () => {
        await this.maker.remove({ unit, recipe });
        await this.records.remove(handId);
      },
      onEnding: (end) => {
        this.live.delete(handId);
        const over = end.catch(() => {}).then(() => this.ending.delete(handId));
        this.ending.set(handId, over);
      },
      clock,
      log,
    });
  }

  private async removeLeftovers(handId: string): Promise<void> {
    const record = await this.records.read(handId);
    if (record === undefined) return;
    await this.maker.remove(record);
    await this.records.remove(handId);
  }

  /** Once in an agent's life, before it makes anything: what earlier lives made and no record names. */
  private tidy(): Promise<void> {
    this.tidied ??= tidyEngine(this.engine, this.records);
    this.tidied.catch(() => {
      this.tidied = undefined;
    });
    return this.tidied;
  }

  /** One object per hand: whoever asks while it is being made waits for the same one. */
  private keep(handId: string, make: () => Promise<DockerHand>): Promise<DockerHand> {
    const made = make();
    this.live.set(handId, made);
    made.catch(() => {
      if (this.live.get(handId) === made) this.live.delete(handId);
    });
    return made;
  }
}

interface EngineInfo {
  readonly OSType: string;
  readonly ServerVersion: string;
  readonly DefaultRuntime?: string;
}

function newUnit(): string {
  return randomBytes(12).toString("hex");
}
