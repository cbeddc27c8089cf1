/** Keeps processes of harnesses running, as a supervisor does: each one that dies is replaced, and counted. */
import { type ChildProcess, spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { HarnessOrder } from "./deadly-harness-program.ts";
import { repository } from "./owner-process.ts";

export class HarnessFleet {
  deaths = 0;
  private readonly order: HarnessOrder;
  private readonly children = new Set<ChildProcess>();
  private stopped = false;

  constructor(count: number, order: HarnessOrder) {
    this.order = order;
    for (let n = 0; n < count; n++) this.startOne();
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
    const program = fileURLToPath(new URL("./deadly-harness-program.ts", import.meta.url));
    const loader = `${repository}/node_modules/tsx/dist/loader.mjs`;
    const child = spawn(process.execPath, ["--import", loader, program], {
      stdio: ["pipe", "ignore", "inherit"],
    });
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
