/** One hand of the process driver: a sandbox, its first process, its files. */
import type { Clock } from "../../../kit/clock.ts";
import type { Logger } from "../../../kit/log.ts";
import { ContainedFiles } from "../contained-files.ts";
import {
  type DestroyReport,
  type ExecSpec,
  type Hand,
  HandError,
  type HandMounts,
  type HandPipe,
  type JsonValue,
  type MountSpec,
  type ProcessInfo,
  type RunningProcess,
} from "../driver.ts";
import { ForwardedFiles } from "../forwarded-files.ts";
import { killHard, ProcessTable } from "../process-table.ts";
import { checkPassable, FifoInput, FifoPipe, FifoStock, PipeLost } from "./fifo-pipe.ts";
import type { HandDirs } from "./hand-dirs.ts";
import { openMounts, rootsOfMounts } from "./hand-mounts.ts";
import type { InitChannel } from "./init-channel.ts";
import { hasPidNamespace, type Identity, type IsolationMode } from "./isolation.ts";

/** The bound of X4 for everything that ends processes. */
const END_WITHIN_MS = 3_000;
const LOSS_POLL_MS = 250;
/** Pipes that background processes still hold, read and dropped. The oldest is let go beyond that. */
const MAX_HELD_PIPES = 256;
/** From the stock, and twice from what was made anew: a process inside may be removing pipes all the time. */
const MAX_PIPE_ATTEMPTS = 3;
const PIPES_UNUSABLE =
  "the hand's folder for pipes (run, beside its workspace) was changed from inside and cannot be used";

export interface ProcessHandOptions {
  readonly id: string;
  readonly handle: JsonValue;
  readonly mode: IsolationMode;
  readonly isolation: string;
  readonly identity: Identity;
  readonly dirs: HandDirs;
  readonly env: Readonly<Record<string, string>>;
  readonly mounts: readonly MountSpec[];
  /** Of the mounts, by path: those whose directories were not there before. */
  readonly madeMounts: readonly string[];
  readonly resumed: boolean;
  readonly clock: Clock;
  readonly log: Logger;
  /** Starts the sandbox; called again when it ended under a living hand. */
  readonly launch: (signal?: AbortSignal) => Promise<InitChannel>;
  /** Tells the driver that this object takes no more calls; `end` settles when nothing of it runs. */
  readonly onEnding: (end: Promise<unknown>) => void;
  /** Makes the folder of named pipes usable again after the hand has changed it. */
  readonly mendPipes: () => Promise<void>;
  readonly removeFiles: () => Promise<void>;
}

export class ProcessHand extends ForwardedFiles implements Hand {
  readonly id: string;
  readonly handle: JsonValue;
  readonly isolation: string;
  readonly workdir: string;
  readonly outputsDir: string;
  readonly roots: readonly string[];
  readonly mounts?: HandMounts;
  readonly resumed: boolean;
  private readonly options: ProcessHandOptions;
  protected readonly files: ContainedFiles;
  private readonly stock: FifoStock;
  private readonly openPipes = new Set<FifoPipe>();
  private channel: Promise<InitChannel> | undefined;
  private table: ProcessTable | undefined;
  private over: Promise<DestroyReport> | undefined;

  constructor(options: ProcessHandOptions) {
    super();
    const { dirs, identity } = options;
    this.id = options.id;
    this.handle = options.handle;
    this.isolation = options.isolation;
    this.resumed = options.resumed;
    this.workdir = dirs.work;
    this.outputsDir = dirs.outputs;
    this.options = options;
    const { mode, mounts } = options;
    const owner = identity.asRoot && mode !== "none" ? identity : undefined;
    const own = [dirs.work, dirs.outputs].map((path) => ({ path, at: path }));
    const roots = [...own, ...rootsOfMounts(dirs, mounts, mode)];
    this.roots = roots.map(({ path }) => path);
    this.files = new ContainedFiles({ roots, owner });
    if (mounts.length > 0) this.mounts = openMounts(dirs, mounts, { mode, owner, made: options.madeMounts });
    this.stock = new FifoStock(dirs.run, async (names) => (await this.init()).makePipes(dirs.run, names));
  }

  /** Resolves when the hand takes work. */
  async start(signal?: AbortSignal): Promise<void> {
    await this.init(signal);
  }

  async exec(spec: ExecSpec, signal?: AbortSignal): Promise<RunningProcess> {
    signal?.throwIfAborted();
    const init = await this.init();
    const { stdout, stderr, input } = await this.openStreams(spec);
    try {
      const { pid, exit, lost } = await init.run({
        in: input?.path ?? "/dev/null",
        out: stdout.path,
        err: stderr.path,
        cwd: spec.cwd ?? this.workdir,
        env: this.environment(spec),
        argv: spec.argv,
      });
      for (const pipe of [stdout, stderr]) pipe.opened();
      let isOver = false;
      const over = () => {
        isOver = true;
        input?.close();
        stdout.finish();
        stderr.finish();
        signal?.removeEventListener("abort", kill);
      };
      const kill = async () => {
        if (!isOver) await this.killProcess(pid);
      };
      signal?.addEventListener("abort", kill, { once: true });
      if (signal?.aborted) void kill();
      exit.then(over, over);
      void Promise.all([stdout.ended, stderr.ended]).then(() => this.watchForLoss(pid, () => isOver, lost));
      return {
        pid,
        stdout,
        stderr,
        exit,
        write: (data) => input?.write(data) ?? Promise.reject(new HandError("the process has no input")),
        endInput: () => input?.close(),
        kill,
      };
    } catch (error) {
      input?.close();
      stdout.close();
      stderr.close();
      throw error;
    }
  }

  private async openStreams({ callId, stdin }: ExecSpec) {
    const opened: (FifoPipe | FifoInput)[] = [];
    const keep = <T extends FifoPipe | FifoInput>(end: T): T => {
      opened.push(end);
      return end;
    };
    try {
      const stdout = keep(await this.openPipe(callId));
      const stderr = keep(await this.openPipe(callId));
      const input = stdin ? keep(await this.fromStock((path) => new FifoInput(path))) : undefined;
      return { stdout, stderr, input };
    } catch (error) {
      for (const end of opened) end.close();
      throw error;
    }
  }

  /** The folder of pipes is the hand's: whatever it did there, they are made anew. */
  private async fromStock<T>(open: (path: string) => T): Promise<T> {
    for (let attempt = 1; ; attempt++) {
      try {
        const path = await this.stock.take();
        checkPassable(this.options.dirs.run);
        return open(path);
      } catch (error) {
        if (!(error instanceof PipeLost)) throw error;
        if (attempt === MAX_PIPE_ATTEMPTS) throw new HandError(`${error.message}; ${PIPES_UNUSABLE}`);
        this.options.log.warn({ hand: this.id, reason: error.message }, "a hand's pipes are made anew");
        this.stock.discard();
        await this.options.mendPipes().catch(() => {
          throw new HandError(PIPES_UNUSABLE);
        });
      }
    }
  }

  async openPipe(callId?: string): Promise<FifoPipe> {
    const onClosed = (closed: FifoPipe) => {
      this.openPipes.delete(closed);
      this.table?.unmarkPipe(closed.key);
    };
    const pipe = await this.fromStock((path) => new FifoPipe(path, onClosed));
    this.openPipes.add(pipe);
    if (callId !== undefined) this.table?.markPipe(pipe.key, callId);
    if (this.openPipes.size > MAX_HELD_PIPES) [...this.openPipes].find((each) => each.isFinished)?.close();
    return pipe satisfies HandPipe;
  }

  async callProcesses(callId?: string): Promise<ProcessInfo[]> {
    if (!this.table) return [];
    return callId === undefined ? this.table.list() : this.table.ofCall(callId);
  }

  async callCpuMs(callId: string): Promise<number | undefined> {
    return this.table?.cpuMsOfCall(callId);
  }

  async killCall(
    callId: string,
    { withinMs, also }: { withinMs: number; also?: RunningProcess },
  ): Promise<{ left: ProcessInfo[] }> {
    const { table } = this;
    if (!table) return { left: [] };
    // The starter of processes goes first, so that it starts no more.
    if (also) await also.kill();
    return table.kill(() => table.ofCall(callId), withinMs);
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
    await this.options.removeFiles();
    return report;
  }

  private async end(): Promise<DestroyReport> {
    const { table } = this;
    const init = await this.channel?.catch(() => undefined);
    // The tree hangs below the launcher: it is told from the first process on, as long as that lives.
    if (hasPidNamespace(this.options.mode)) await this.killProcess(1);
    if (table) await table.kill(() => table.list(), END_WITHIN_MS);
    init?.kill();
    // What had wiped its marks is still found in the process namespace or by its uid.
    const report = table ? await table.kill(() => table.listAll(), END_WITHIN_MS) : { left: [] };
    if (init && report.left.length === 0) await init.ended;
    for (const pipe of [...this.openPipes]) pipe.close();
    return report;
  }

  /** The sandbox, started again if it ended by itself: its files are all on disk. */
  private init(signal?: AbortSignal): Promise<InitChannel> {
    if (this.over) return Promise.reject(new HandError("the hand has been released"));
    this.channel ??= this.launch(signal);
    return this.channel;
  }

  private async launch(signal?: AbortSignal): Promise<InitChannel> {
    try {
      const channel = await this.options.launch(signal);
      this.table = this.newTable(channel);
      void channel.ended.then((reason) => {
        this.channel = undefined;
        if (!this.over) this.options.log.warn({ hand: this.id, reason }, "sandbox ended by itself");
      });
      return channel;
    } catch (error) {
      this.channel = undefined;
      throw error;
    }
  }

  private newTable(channel: InitChannel): ProcessTable {
    const { mode, identity, clock } = this.options;
    const scope = hasPidNamespace(mode)
      ? ({ kind: "tree", launcherPid: channel.launcherPid } as const)
      : mode === "uid"
        ? ({ kind: "uid", uid: identity.uid } as const)
        : ({ kind: "marked" } as const);
    return new ProcessTable({ handId: this.id, scope, clock });
  }

  private environment(spec: ExecSpec): Record<string, string> {
    const call: Record<string, string> = spec.callId === undefined ? {} : { TENDON_CALL_ID: spec.callId };
    return { ...this.options.env, ...spec.env, TENDON_HAND_ID: this.id, ...call };
  }

  /**
   * The one who waits for a process inside may be killed with it (`kill -9 -1`). Once its outputs are closed, a process
   * that is gone and has no status within a while has lost it.
   */
  private async watchForLoss(pid: number, isOver: () => boolean, lost: () => void): Promise<void> {
    while (!isOver()) {
      await this.options.clock.sleep(LOSS_POLL_MS);
      if (!isOver() && (await this.table?.hostPid(pid)) === undefined) return lost();
    }
  }

  private async killProcess(namespacePid: number): Promise<void> {
    const pid = await this.table?.hostPid(namespacePid);
    if (pid !== undefined) killHard(pid);
  }
}
