/** A hand of the scripted driver: another driver's, with failures. */
import type { Clock } from "../../../kit/clock.ts";
import {
  type DestroyReport,
  type ExecSpec,
  type ExitStatus,
  type FileStat,
  type Hand,
  HandError,
  type HandMounts,
  type HandPipe,
  type JsonValue,
  type ProcessInfo,
  type RunningProcess,
  type WalkEntry,
  type WalkOptions,
} from "../driver.ts";
import { reportWith, suffer } from "./effects.ts";
import type { Effect, Script } from "./script.ts";

export interface ScriptedHandOptions {
  readonly inner: Hand;
  readonly script: Script;
  readonly clock: Clock;
}

const FLOOD_CHUNK = new Uint8Array(64 * 1024).fill("x".charCodeAt(0));

export class ScriptedHand implements Hand {
  readonly park?: () => Promise<DestroyReport>;
  readonly mounts?: HandMounts;
  private readonly inner: Hand;
  private readonly options: ScriptedHandOptions;
  /** Told when the sandbox ends under its processes. */
  private readonly running = new Set<(error: HandError) => void>();

  constructor(options: ScriptedHandOptions) {
    const { inner } = options;
    this.inner = inner;
    this.options = options;
    if (inner.mounts !== undefined) this.mounts = inner.mounts;
    if (inner.park !== undefined) {
      this.park = async () => {
        const effect = this.effectOn("park");
        await suffer(options.clock, effect);
        return reportWith(await inner.park!(), effect);
      };
    }
  }

  get id(): string {
    return this.inner.id;
  }
  get handle(): JsonValue {
    return this.inner.handle;
  }
  get isolation(): string {
    return this.inner.isolation;
  }
  get workdir(): string {
    return this.inner.workdir;
  }
  get outputsDir(): string {
    return this.inner.outputsDir;
  }
  get roots(): readonly string[] {
    return this.inner.roots;
  }
  get resumed(): boolean {
    return this.inner.resumed;
  }

  async exec(spec: ExecSpec, signal?: AbortSignal): Promise<RunningProcess> {
    const effect = this.effectOn("exec", spec.argv.join(" "));
    await suffer(this.options.clock, effect, signal);
    const inner = await this.inner.exec(spec, signal);
    const exit = this.exitOf(inner);
    return {
      pid: inner.pid,
      stdout: this.pipeWith(inner.stdout, effect),
      stderr: inner.stderr,
      exit,
      write: (data) => inner.write(data),
      endInput: () => inner.endInput(),
      kill: () => inner.kill(),
    };
  }

  async openPipe(callId: string): Promise<HandPipe> {
    const effect = this.effectOn("output", callId);
    await suffer(this.options.clock, effect);
    return this.pipeWith(await this.inner.openPipe(callId), effect);
  }

  stat(path: string): Promise<FileStat> {
    return this.inner.stat(path);
  }

  async *readFile(
    path: string,
    options?: { offset?: number; signal?: AbortSignal },
  ): AsyncGenerator<Uint8Array> {
    await suffer(this.options.clock, this.effectOn("readFile", path), options?.signal);
    yield* this.inner.readFile(path, options);
  }

  async writeFile(
    path: string,
    content: Uint8Array | AsyncIterable<Uint8Array>,
    options?: { mode?: number; signal?: AbortSignal },
  ): Promise<{ bytes: number }> {
    await suffer(this.options.clock, this.effectOn("writeFile", path), options?.signal);
    return this.inner.writeFile(path, content, options);
  }

  mkdir(path: string): Promise<void> {
    return this.inner.mkdir(path);
  }
  rename(from: string, to: string): Promise<void> {
    return this.inner.rename(from, to);
  }
  remove(path: string): Promise<void> {
    return this.inner.remove(path);
  }
  walk(path: string, options?: WalkOptions): AsyncIterable<WalkEntry> {
    return this.inner.walk(path, options);
  }
  callProcesses(callId?: string): Promise<ProcessInfo[]> {
    return this.inner.callProcesses(callId);
  }
  async callCpuMs(callId: string): Promise<number | undefined> {
    return this.inner.callCpuMs?.(callId);
  }
  killCall(
    callId: string,
    options: { withinMs: number; also?: RunningProcess },
  ): Promise<{ left: ProcessInfo[] }> {
    return this.inner.killCall(callId, options);
  }

  async destroy(): Promise<DestroyReport> {
    const effect = this.effectOn("destroy");
    await suffer(this.options.clock, effect);
    return reportWith(await this.inner.destroy(), effect);
  }

  private effectOn(on: Parameters<Script["effectOn"]>[0], argument?: string): Effect {
    return this.options.script.effectOn(on, this.inner.id, argument);
  }

  private exitOf(inner: RunningProcess): Promise<ExitStatus> {
    const exit = new Promise<ExitStatus>((resolve, reject) => {
      const end = (error: HandError) => {
        reject(error);
        void inner.kill();
      };
      this.running.add(end);
      const over = () => this.running.delete(end);
      inner.exit.then(resolve, reject).finally(over);
    });
    exit.catch(() => {}); // whoever waits for it sees it too
    return exit;
  }

  private pipeWith(inner: HandPipe, effect: Effect): HandPipe {
    if (effect.endAtByte === undefined && effect.flood === undefined) return inner;
    return {
      path: inner.path,
      chunks: this.chunksWith(inner, effect),
      finish: () => inner.finish(),
      abandon: () => inner.abandon(),
    };
  }

  private async *chunksWith(inner: HandPipe, { flood = 0, endAtByte }: Effect): AsyncGenerator<Uint8Array> {
    for (let left = flood; left > 0; left -= FLOOD_CHUNK.length) yield FLOOD_CHUNK.subarray(0, left);
    let passed = 0;
    for await (const chunk of inner.chunks) {
      const room = (endAtByte ?? Number.POSITIVE_INFINITY) - passed;
      passed += chunk.length;
      if (chunk.length < room) {
        yield chunk;
        continue;
      }
      yield chunk.subarray(0, room);
      inner.abandon();
      const error = new HandError(`the sandbox ended at byte ${endAtByte}, as its script says`);
      for (const end of [...this.running]) end(error);
      return;
    }
  }
}
