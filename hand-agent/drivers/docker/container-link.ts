/**
 * The agent's hold of one running container: its first lane, which starts with it and takes the short orders (kill, make
 * pipes, finish pipes), and the pool for everything that takes longer. When the container or the engine goes, `ended`
 * says why, and everything that was going on fails with that reason.
 */
import { type Clock, within } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import { type ExecSpec, HandError, type HandPipe, type RunningProcess } from "../driver.ts";
import { CallPipes } from "./call-pipes.ts";
import { ContainerProcesses } from "./container-processes.ts";
import type { Engine } from "./engine.ts";
import { Lane, type Reply } from "./lane.ts";
import { LanePool } from "./lane-pool.ts";
import { LANE_SCRIPT, NEEDED_COMMANDS, quote } from "./lane-script.ts";
import { ProgramRun } from "./program-run.ts";

/** When a container ends, all connections into it do. */
const TOGETHER_WITHIN_MS = 300;
const TOLD_WITHIN_MS = 2_000;
/** For an engine, or a runtime below it, that does not answer: takes 50-80 ms where they do. */
const EXEC_WITHIN_MS = 60_000;
const ASK_AGAIN_MS = 50;

export interface ContainerLinkOptions {
  readonly engine: Engine;
  readonly containerId: string;
  readonly workdir: string;
  readonly processLimit: number;
  readonly outputsDir: string;
  /** A directory of the hand's own, for named pipes. */
  readonly pipesDir: string;
  readonly clock: Clock;
}

export class ContainerLink {
  /** Resolves with the reason once nothing can run in the container any more. */
  readonly ended: Promise<string>;
  readonly pool: LanePool;
  readonly processes: ContainerProcesses;
  private readonly options: ContainerLinkOptions;
  private readonly pipes: CallPipes;
  /** On the container's own input and output: the only one that ends with it and with nothing else. */
  private attached: Lane | undefined;
  /** For short orders. */
  private first: Lane | undefined;
  private orders: Promise<unknown> = Promise.resolve();
  private resolveEnded: (reason: string) => void = () => {};
  private endReason: string | undefined;

  private constructor(options: ContainerLinkOptions) {
    this.options = options;
    this.ended = new Promise((resolve) => {
      this.resolveEnded = resolve;
    });
    this.pool = new LanePool({
      open: () => this.openLane(),
      kill: (lane) => void this.order(`kill -9 -${lane.pid} 2>/dev/null`).catch(() => {}),
    });
    this.pipes = new CallPipes({
      dir: options.pipesDir,
      pool: this.pool,
      order: (script) => this.order(script),
      isRunning: async () => this.isOpen && (await this.whyEnded()) === undefined,
      clock: options.clock,
    });
    this.processes = new ContainerProcesses({
      look: async () => (await this.order("( do_processes )")).text,
      kill: async (pids) => void (await this.order(`kill -9 ${pids.join(" ")} 2>/dev/null`)),
      callOfPipe: (path) => this.pipes.callOf(path),
      clock: options.clock,
    });
  }

  /** Starts the container and resolves when it takes work; `prepare` comes in between. Leaves the container to its maker when it fails. */
  static async start(
    options: ContainerLinkOptions,
    start: { run: () => Promise<void>; prepare: () => Promise<void> },
  ): Promise<ContainerLink> {
    const link = new ContainerLink(options);
    try {
      const stream = await options.engine.attach(options.containerId);
      link.attached = await Lane.open(stream, { clock: options.clock, start: start.run });
      link.first = link.attached;
      void link.first.ended.then(() => link.firstLaneEnded());
      await Promise.all([start.prepare(), link.check()]);
      link.pool.warm();
      return link;
    } catch (error) {
      const reason = await link.whyEnded();
      link.close("it could not be started");
      const isTold = reason === undefined || messageOf(error).includes(reason);
      throw isTold ? error : new HandError(`${messageOf(error)} (${reason})`);
    }
  }

  get isOpen(): boolean {
    return this.endReason === undefined;
  }

  /** Ends this side; the container is its maker's. */
  close(reason: string): void {
    if (this.endReason !== undefined) return;
    this.endReason = reason;
    this.pool.close();
    this.first?.close();
    this.pipes.close();
    this.resolveEnded(reason);
  }

  /** A short order, in turn; answered within milliseconds. */
  order(script: string): Promise<Reply> {
    const answer = this.orders.then(async () => {
      if (this.endReason !== undefined) throw new HandError(`the container has ended: ${this.endReason}`);
      if (!this.first?.isOpen) {
        this.first = await this.openLane();
        void this.first.ended.then(() => this.firstLaneEnded());
      }
      return this.first.run(script);
    });
    this.orders = answer.catch(() => {});
    return answer;
  }

  openPipe(callId: string): Promise<HandPipe> {
    return this.pipes.open(callId);
  }

  async exec(spec: ExecSpec, env: Readonly<Record<string, string>>): Promise<RunningProcess> {
    const lane = await this.pool.take();
    return ProgramRun.start(lane, spec, {
      env,
      cwd: spec.cwd ?? this.options.workdir,
      processLimit: this.options.processLimit,
      kill: async (pid) => void (await this.order(`kill -9 ${pid} 2>/dev/null`)),
      endOfLost: () => this.endOfLostProgram(),
    });
  }

  /** Of a program whose lane broke off: it was killed with its lane, or the container went. */
  private async endOfLostProgram(): Promise<{ code: number }> {
    // Where this side has ended it, its programs are told at once: who calls next must not meet one that is dead.
    const reason = this.endReason ?? (await this.whyEnded());
    if (reason === undefined) return { code: 128 + 9 };
    this.close(reason);
    throw new HandError(`the container has ended: ${reason}`);
  }

  private async openLane(): Promise<Lane> {
    const { engine, containerId, workdir, outputsDir, clock } = this.options;
    const argv = ["/bin/sh", "-c", LANE_SCRIPT, "tendon-lane", workdir, outputsDir];
    const asked = engine.exec(containerId, { argv, workdir: "/" });
    const late = () => new HandError("the engine did not start a shell in the container in time");
    try {
      return await Lane.open(await within(clock, EXEC_WITHIN_MS, asked, late), { clock });
    } catch (error) {
      // One that comes all the same is nobody's.
      void asked.then((stream) => stream.destroy()).catch(() => {});
      throw error;
    }
  }

  /** One order, because a hand waits for it. */
  private async check(): Promise<void> {
    const { workdir } = this.options;
    const write = `cd -- ${quote(workdir)} && : >.tendon-check && rm .tendon-check`;
    // Sandboxed kernels may not know what newer programs ask of them.
    const stat = 'S=$(LC_ALL=C stat -c %f / 2>&1 >/dev/null) || { printf %s "$S"; exit 41; }';
    const temporary = "{ [ -w /tmp ] && [ -x /tmp ]; } || chmod 1777 /tmp || exit 40";
    const { code, text } = await this.order(
      `( (do_check ${NEEDED_COMMANDS.join(" ")}); ${stat}; ${temporary}; ${write} ) 2>/dev/null`,
    );
    const missing = text.trim();
    if (code === 41)
      throw new HandError(
        `the image's stat fails in this container's runtime (${missing}): a newer runtime, or an image with older or smaller programs such as busybox, is needed`,
      );
    if (missing !== "")
      throw new HandError(`the image has none of these commands, which a hand needs: ${missing}`);
    if (code === 40)
      throw new HandError("the hand cannot write to /tmp; the image's /tmp should have the mode 1777");
    if (code !== 0) throw new HandError(`the hand cannot write to its directory ${workdir}`);
  }

  private async firstLaneEnded(): Promise<void> {
    if (this.endReason !== undefined) return;
    const reason = await this.whyEnded();
    if (reason !== undefined) this.close(reason);
  }

  /** Undefined while the container runs. Connections end a little before the engine says that the container did. */
  private async whyEnded(): Promise<string | undefined> {
    const { clock } = this.options;
    const reason = await this.askWhyEnded();
    if (reason !== undefined || this.attached === undefined) return reason;
    const { attached } = this;
    await within(clock, TOGETHER_WITHIN_MS, attached.ended, () => new Error("it runs")).catch(() => {});
    if (attached.isOpen || attached.isReplaced) return undefined;
    for (let leftMs = TOLD_WITHIN_MS; leftMs > 0; leftMs -= ASK_AGAIN_MS) {
      await clock.sleep(ASK_AGAIN_MS);
      const told = await this.askWhyEnded();
      if (told !== undefined) return told;
    }
    return "the engine ended the connection to it";
  }

  private async askWhyEnded(): Promise<string | undefined> {
    const { engine, containerId } = this.options;
    try {
      const found = await engine.find("look at the container", (docker) =>
        docker.getContainer(containerId).inspect(),
      );
      if (found === undefined) return "somebody removed the container";
      const { State: state } = found;
      if (state.Running && !state.Restarting) return undefined;
      if (state.OOMKilled) return "it ran out of memory (limits.memory_bytes)";
      return state.Error !== "" ? state.Error : `somebody stopped the container (exit ${state.ExitCode})`;
    } catch (error) {
      return messageOf(error);
    }
  }
}
