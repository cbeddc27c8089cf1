/** A process whose functions a test calls, such as one in another network. It ends with the test. */
import { type ChildProcess, spawn } from "node:child_process";
import { repository } from "./owner-process.ts";
import { testProgram } from "./test-program.ts";

type Functions = Readonly<Record<string, (...args: never[]) => unknown>>;
interface Call {
  id: number;
  name: string;
  args: unknown[];
}
interface Answer {
  id: number;
  value?: unknown;
  error?: string;
}

/** In the process: takes calls until the test is gone. Arguments and values must survive JSON. */
export function serveCalls(functions: Functions): void {
  process.on("message", async ({ id, name, args }: Call) => {
    let answer: Answer;
    try {
      answer = { id, value: await functions[name]!(...(args as never[])) };
    } catch (error) {
      answer = { id, error: error instanceof Error ? error.message : String(error) };
    }
    process.send?.(answer);
  });
  process.on("disconnect", () => process.exit());
  process.send?.({ id: 0 });
}

/** In the test. `F` is the type of what the process serves. */
export class CalledProcess<F extends Functions> {
  readonly process: ChildProcess;
  private readonly waiting = new Map<number, { resolve(value: unknown): void; reject(error: Error): void }>();
  private readonly exited: Promise<void>;
  private nextId = 1;
  private said = "";

  private constructor(argv: readonly string[]) {
    const [command = "", ...args] = argv;
    this.process = spawn(command, args, { cwd: repository, stdio: ["ignore", "ignore", "pipe", "ipc"] });
    this.process.stderr?.setEncoding("utf8").on("data", (text: string) => {
      this.said += text;
    });
    this.process.on("message", ({ id, value, error }: Answer) => {
      const waiter = this.waiting.get(id);
      this.waiting.delete(id);
      if (error === undefined) waiter?.resolve(value);
      else waiter?.reject(new Error(error));
    });
    this.exited = new Promise((resolve) => this.process.once("exit", () => resolve()));
    void this.exited.then(() => {
      for (const { reject } of this.waiting.values())
        reject(new Error(`the process has ended: ${this.said}`));
    });
  }

  /**
   * `source` is the program, named from the repository's root. `prefix` are words in front of the command line, such as those
   * that lead into a network.
   */
  static async start<F extends Functions>(
    source: string,
    { prefix = [], args = [] }: { prefix?: readonly string[]; args?: readonly string[] } = {},
  ): Promise<CalledProcess<F>> {
    const file = await testProgram(source);
    const called = new CalledProcess<F>([...prefix, process.execPath, file, ...args]);
    await new Promise<unknown>((resolve, reject) => called.waiting.set(0, { resolve, reject }));
    return called;
  }

  call<N extends keyof F & string>(name: N, ...args: Parameters<F[N]>): Promise<Awaited<ReturnType<F[N]>>> {
    return new Promise((resolve, reject) => {
      const id = this.nextId++;
      this.waiting.set(id, { resolve: resolve as (value: unknown) => void, reject });
      this.process.send({ id, name, args } satisfies Call);
    });
  }

  /** What it wrote on stderr so far. */
  get log(): string {
    return this.said;
  }

  async kill(): Promise<void> {
    this.process.kill("SIGKILL");
    await this.exited;
  }
}
