/** One hand of the docker driver: a workspace in volumes, and a container around it that may be replaced. */
import { type Clock, within } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import type { Logger } from "../../../kit/log.ts";
import {
  type DestroyReport,
  type ExecSpec,
  type Hand,
  HandError,
  type HandMounts,
  type HandPipe,
  type JsonValue,
  type ProcessInfo,
  type RunningProcess,
} from "../driver.ts";
import { ForwardedFiles, type HandFiles } from "../forwarded-files.ts";
import { PipesSpoiled } from "./call-pipes.ts";
import { ContainerFiles } from "./container-files.ts";
import type { ContainerLink } from "./container-link.ts";
import type { RunningContainer } from "./container-maker.ts";
import { OUTPUTS_DIR } from "./container-plan.ts";
import type { DockerRecord } from "./hand-records.ts";
import { FilesWithMounts, mountsOf } from "./mounts-volume.ts";

/** Of the time for killing a call, what may pass before the whole container is ended instead. */
const KILL_ONE_BY_ONE_SHARE = 0.6;

export interface DockerHandOptions {
  readonly record: DockerRecord;
  readonly isolation: string;
  readonly resumed: boolean;
  readonly isSetUp: boolean;
  readonly container: RunningContainer;
  /** A new container around the same workspace, whatever became of the one before. */
  readonly makeAgain: () => Promise<RunningContainer | "gone">;
  /** Ends the container and keeps the workspace. */
  readonly removeContainer: () => Promise<void>;
  readonly removeAll: () => Promise<void>;
  /** Tells the driver that this object takes no more calls; `end` settles when nothing of it runs. */
  readonly onEnding: (end: Promise<unknown>) => void;
  readonly clock: Clock;
  readonly log: Logger;
}

export class DockerHand extends ForwardedFiles implements Hand {
  readonly id: string;
  readonly handle: JsonValue;
  readonly isolation: string;
  readonly workdir: string;
  readonly outputsDir = OUTPUTS_DIR;
  readonly roots: readonly string[];
  readonly resumed: boolean;
  readonly isSetUp: boolean;
  readonly lost: Promise<string>;
  private readonly options: DockerHandOptions;
  readonly mounts?: HandMounts;
  protected readonly files: HandFiles;
  private current: Promise<RunningContainer> | undefined;
  /** What `current` came to; undefined once that has ended. */
  private adopted: RunningContainer | undefined;
  /** No container is made meanwhile: it would be removed with the one before. */
  private removing: Promise<void> | undefined;
  private over: Promise<DestroyReport> | undefined;
  private resolveLost: (reason: string) => void = () => {};

  constructor(options: DockerHandOptions) {
    super();
    const { record } = options;
    this.id = record.handId;
    this.handle = { version: 1, handId: record.handId };
    this.isolation = options.isolation;
    this.workdir = record.recipe.workdir;
    const mounts = record.recipe.mounts?.map(({ path }) => path) ?? [];
    this.roots = [this.workdir, OUTPUTS_DIR, ...mounts];
    this.resumed = options.resumed;
    this.isSetUp = options.isSetUp;
    this.lost = new Promise((resolve) => {
      this.resolveLost = resolve;
    });
    this.options = options;
    const inside = new ContainerFiles(async () => (await this.link()).pool);
    const { mounted } = options.container;
    this.files = mounted === undefined ? inside : new FilesWithMounts(inside, mounted);
    if (mounted !== undefined) this.mounts = mountsOf(mounted);
    this.adopt(options.container);
  }

  async exec(spec: ExecSpec, signal?: AbortSignal): Promise<RunningProcess> {
    signal?.throwIfAborted();
    const link = await this.link();
    const call: Record<string, string> = spec.callId === undefined ? {} : { TENDON_CALL_ID: spec.callId };
    const run = await link.exec(spec, { ...spec.env, TENDON_HAND_ID: this.id, ...call });
    const kill = () => void run.kill().catch(() => {});
    signal?.addEventListener("abort", kill, { once: true });
    if (signal?.aborted) kill();
    const over = () => signal?.removeEventListener("abort", kill);
    run.exit.then(over, over);
    return run;
  }

  /** A hand that spoiled its pipes gets new ones, in a new container, with the next call. */
  async openPipe(callId: string): Promise<HandPipe> {
    const link = await this.link();
    try {
      return await link.openPipe(callId);
    } catch (error) {
      if (error instanceof PipesSpoiled) await this.killAll(link, [], "it had spoiled its own pipes");
      throw error;
    }
  }

  async callCpuMs(callId: string): Promise<number | undefined> {
    return (await this.running())?.processes.cpuMs(callId);
  }

  async callProcesses(callId?: string): Promise<ProcessInfo[]> {
    const link = await this.running();
    if (link === undefined) return [];
    try {
      return await link.processes.list(callId);
    } catch (error) {
      if (!link.isOpen) return [];
      // Where nobody can look any more, nothing may run on unseen.
      this.options.log.warn({ err: error, hand: this.id }, "a container's processes could not be listed");
      return (await this.killAll(link, [])).left;
    }
  }

  /** Where killing one by one does not get there, the container is ended: nothing of the call may outlive this. */
  async killCall(
    callId: string,
    { withinMs, also }: { withinMs: number; also?: RunningProcess },
  ): Promise<{ left: ProcessInfo[] }> {
    const link = await this.running();
    if (link === undefined) return { left: [] };
    const oneByOneMs = withinMs * KILL_ONE_BY_ONE_SHARE;
    const kill = async () => {
      // The starter of processes goes first, so that it starts no more.
      if (also) await also.kill();
      return link.processes.kill(callId, oneByOneMs);
    };
    const { clock, log } = this.options;
    const bound = oneByOneMs * 1.1;
    const { left } = await within(clock, bound, kill(), () => new HandError("it took too long")).catch(
      (error) => {
        log.warn({ err: error, hand: this.id }, "a call's processes could not be ended one by one");
        return { left: undefined };
      },
    );
    if (left?.length === 0) return { left: [] };
    return this.killAll(link, left ?? []);
  }

  park(): Promise<DestroyReport> {
    if (!this.over) {
      this.over = this.end();
      this.options.onEnding(this.over);
    }
    return this.over;
  }

  async destroy(): Promise<DestroyReport> {
    const report = await this.park();
    await this.options.removeAll();
    return report;
  }

  /** Gives the container to another hand object; this one takes no more calls. */
  async handOver(): Promise<RunningContainer> {
    const container = await this.current;
    this.over = Promise.resolve({ left: [] });
    if (container === undefined) throw new HandError("the container has ended");
    return container;
  }

  private async end(): Promise<DestroyReport> {
    const container = await this.current?.catch(() => undefined);
    container?.link.close("the hand was ended");
    await this.options.removeContainer();
    return { left: [] };
  }

  private async killAll(
    link: ContainerLink,
    left: readonly ProcessInfo[],
    why = "the processes of a call could only be ended with it",
  ): Promise<{ left: ProcessInfo[] }> {
    try {
      if (this.isReplaced(link)) await this.current;
      else {
        link.close(why);
        this.removing ??= this.options.removeContainer().finally(() => {
          this.removing = undefined;
        });
        await this.removing;
      }
      return { left: [] };
    } catch (error) {
      this.options.log.error({ err: error, hand: this.id }, "a container could not be ended");
      return { left: [...left] };
    }
  }

  /** Whoever makes a new container removes the one before. */
  private isReplaced(link: ContainerLink): boolean {
    return this.current !== undefined && this.adopted?.link !== link;
  }

  private adopt(container: RunningContainer): void {
    this.current = Promise.resolve(container);
    this.adopted = container;
    void container.link.ended.then((reason) => {
      this.current = undefined;
      this.adopted = undefined;
      if (!this.over) this.options.log.warn({ hand: this.id, reason }, "the container ended");
    });
  }

  /** The container as it is; undefined when none runs. */
  private async running(): Promise<ContainerLink | undefined> {
    const container = await this.current?.catch(() => undefined);
    return container?.link.isOpen ? container.link : undefined;
  }

  /** A container that ended by itself, or with its engine, is replaced: the files are all there. */
  private async link(): Promise<ContainerLink> {
    if (this.over) throw new HandError("the hand has been released");
    this.current ??= this.replace();
    return (await this.current).link;
  }

  private async replace(): Promise<RunningContainer> {
    try {
      await this.removing?.catch(() => {});
      const made = await this.options.makeAgain();
      if (made === "gone") {
        const reason = "somebody removed its workspace from the engine";
        this.resolveLost(reason);
        throw new HandError(`the hand is lost: ${reason}`);
      }
      if (this.over) {
        made.link.close("the hand was ended");
        await this.options.removeContainer();
        throw new HandError("the hand has been released");
      }
      this.adopt(made);
      return made;
    } catch (error) {
      this.current = undefined;
      throw error instanceof HandError ? error : new HandError(messageOf(error));
    }
  }
}
