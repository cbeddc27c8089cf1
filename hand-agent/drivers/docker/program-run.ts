/** One program of the hand on a lane of its own. The lane ends with it. */
import { type ExecSpec, type ExitStatus, HandError, type RunningProcess } from "../driver.ts";
import { ContainerPipe } from "./container-pipe.ts";
import type { Lane } from "./lane.ts";
import { quote } from "./lane-script.ts";

export interface ProgramRunOptions {
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string;
  /** For this program and what it starts, counted by user. */
  readonly processLimit: number;
  readonly kill: (pid: number) => Promise<void>;
  /** The connection broke off before the program's end was told. */
  readonly endOfLost: () => Promise<ExitStatus>;
}

export class ProgramRun implements RunningProcess {
  pid = -1;
  readonly stdout: ContainerPipe;
  readonly stderr: ContainerPipe;
  readonly exit: Promise<ExitStatus>;
  private readonly lane: Lane;
  private readonly options: ProgramRunOptions;
  private readonly hasInput: boolean;
  private isOver = false;
  private full = 0;

  private constructor(lane: Lane, spec: ExecSpec, options: ProgramRunOptions) {
    this.lane = lane;
    this.options = options;
    this.hasInput = spec.stdin === true;
    this.stdout = this.pipe();
    this.stderr = this.pipe();
    this.exit = this.follow();
    this.exit.catch(() => {}); // whoever needs it awaits it too
  }

  /** Resolves when the process exists. */
  static async start(lane: Lane, spec: ExecSpec, options: ProgramRunOptions): Promise<ProgramRun> {
    const words = [...spec.argv, options.cwd, ...Object.entries(options.env).flat()];
    if (words.some((word) => word.includes("\0"))) {
      lane.close();
      throw new HandError("arguments and variables cannot hold a NUL character");
    }
    const run = new ProgramRun(lane, spec, options);
    const started = run.started();
    lane.line(scriptOf(spec, options));
    run.pid = await started;
    return run;
  }

  write(data: string | Uint8Array): Promise<void> {
    if (!this.hasInput) return Promise.reject(new HandError("the process has no input"));
    if (this.isOver) return Promise.reject(new HandError("the process takes no input"));
    return this.lane.write(data).catch(() => {
      throw new HandError("the process took no more input");
    });
  }

  endInput(): void {
    if (this.hasInput && !this.isOver) this.lane.endInput();
  }

  async kill(): Promise<void> {
    if (!this.isOver && this.pid > 0) await this.options.kill(this.pid);
  }

  private onPid: (pid: number) => void = () => {};

  private started(): Promise<number> {
    return new Promise((resolve, reject) => {
      this.onPid = resolve;
      this.exit.then(
        () => reject(new HandError("the process could not be started")),
        (error) => reject(error),
      );
    });
  }

  private follow(): Promise<ExitStatus> {
    return new Promise((resolve, reject) => {
      let code: number | undefined;
      let heardBoth = 0;
      const over = () => {
        this.isOver = true;
        this.stdout.end();
        this.stderr.end();
      };
      this.lane.use({
        onData: (output, chunk) => this[output].push(chunk),
        onMark: (output, _token, [word, value]) => {
          if (word === "p") this.onPid(Number(value));
          if (word !== "x") return;
          code = Number(value);
          this[output].end();
          heardBoth += 1;
          if (heardBoth < 2) return;
          over();
          this.lane.close();
          resolve({ code });
        },
        onEnd: () => {
          over();
          if (code !== undefined) resolve({ code });
          else this.options.endOfLost().then(resolve, reject);
        },
      });
    });
  }

  private pipe(): ContainerPipe {
    return new ContainerPipe({
      path: "",
      // One connection carries both outputs: it waits while either is full.
      onFull: () => {
        this.full += 1;
        this.lane.pause();
      },
      onDrained: () => {
        this.full -= 1;
        if (this.full === 0) this.lane.resume();
      },
      finish: async () => ({ held: false }),
    });
  }
}

/** The program is a child of the lane, so that its status is told; the lane leaves after it and runs nothing else. */
function scriptOf(spec: ExecSpec, { env, cwd, processLimit }: ProgramRunOptions): string {
  const variables = Object.entries(env).map(([name, value]) => `export ${name}=${quote(value)}`);
  const directory = quote(cwd);
  const steps = [
    // Shells do not agree on the letter; with the wrong one they fail and go on.
    `{ ulimit -p ${processLimit} || ulimit -u ${processLimit}; } 2>/dev/null`,
    `cd -- ${directory} || exit 126`,
    "unset TENDON_LANE",
    ...variables,
    `exec ${spec.argv.map(quote).join(" ")}`,
  ];
  const input = spec.stdin ? "<&3" : "</dev/null";
  return `{ ${steps.join("; ")}; } ${input} 3<&- & P=$!; say p $P; wait $P 2>/dev/null; C=$?; say x $C; say x $C >&2; exit 0`;
}
