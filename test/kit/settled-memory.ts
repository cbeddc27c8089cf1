/** Memory of processes as the kernel counts it, and a way to have a Node program drop its garbage before it is looked at. */
import { systemClock } from "../../kit/clock.ts";
import { residentBytes } from "./process-tree.ts";

const COLLECTOR = `
import v8 from "node:v8";
import vm from "node:vm";
v8.setFlagsFromString("--expose-gc");
const gc = vm.runInNewContext("gc");
process.on("SIGUSR2", () => gc({ type: "major", execution: "sync", flavor: "last-resort" }));
`;

/** For the environment of a program whose garbage `settledBytes` shall collect. */
export const COLLECTS_ON_SIGNAL = {
  NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(COLLECTOR)}`,
};

const COLLECTIONS = 3;
const BETWEEN_MS = 1_000;

/** Resident bytes of a program that was started with `COLLECTS_ON_SIGNAL` and is idle, without its garbage. */
export async function settledBytes(pid: number): Promise<number> {
  for (let time = 0; time < COLLECTIONS; time += 1) {
    process.kill(pid, "SIGUSR2");
    await systemClock.sleep(BETWEEN_MS);
  }
  return residentBytes(pid);
}
