/** Keeps processes of harnesses running, as a supervisor does: each one that dies is replaced, and counted. */
import { type ChildProcess, spawn } from "node:child_process";
import type { HarnessOrder } from "./deadly-harness-program.ts";
import { testProgram } from "./test-program.ts";

export class HarnessFleet {
  deaths = 0;
  private readonly file: string;
  private readonly order: HarnessOrder;
  private readonly children = new Set<ChildProcess>();
  private stopped = false;

  private constructor(file: string, order: HarnessOrder) {
    this.file = file;
    this.order = order;
  }

  static async start(count: number, order: HarnessOrder): Promise<HarnessFleet> {
    const fleet = new HarnessFleet(await testProgram("test/kit/deadly-harness-program.ts"), order);
    for (let n = 0; n < count; n++) fleet.startOne();
    return fleet;
  }

  /** Ends all of them. */
  async stop(): Promise<void> {
    this.stopped = true;
    await Promise.all(
      [...this.children].map(
        (child) =>
          new Promise<void>((resolve) => {
            child.once("exit", () => resolve());
            child.kill("SIGKILL");
          }),
      ),
    );
  }

  private startOne(): void {
    const child = spawn(process.execPath, [this.file], { stdio: ["pipe", "ignore", "inherit"] });
    this.children.add(child);
    child.stdin?.on("error", () => {});
    child.stdin?.write(`${JSON.stringify(this.order)}\n`);
    child.once("exit", () => {
      this.children.delete(child);
      if (this.stopped) return;
      this.deaths += 1;
      this.startOne();
    });
  }
}
