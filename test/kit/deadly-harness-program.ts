/**
 * A harness like any other, in a process of its own, whose loops need no model and some of which kill it, as a session does
 * whose log is too much for whoever reads it. Takes its orders as one JSON line on standard input, says `{"started":true}`,
 * and ends when standard input does.
 */
import { createInterface } from "node:readline";
import type { Loop, LoopTurn } from "../../harness/loops/loop.ts";
import { scriptedLoop } from "../../harness/loops/scripted/scripted-loop.ts";
import { startBrains } from "./brains.ts";

export interface HarnessOrder {
  readonly url: string;
  readonly key: string;
  readonly capacity: number;
  /** How long an answer of the loop `slow` takes. */
  readonly answerMs: number;
}

/** Before anything is recorded: nothing that a signal handler could still do. */
function die(): never {
  process.kill(process.pid, "SIGKILL");
  for (;;);
}

const lines = createInterface({ input: process.stdin });
const order = JSON.parse((await lines[Symbol.asyncIterator]().next()).value ?? "") as HarnessOrder;

const slow: Loop = {
  name: "slow",
  model: () => "slow",
  async run(turn: LoopTurn, signal: AbortSignal) {
    await turn.clock.sleep(order.answerMs, signal);
    return scriptedLoop.run(turn, signal);
  },
};
const deadly: Loop = { name: "deadly", model: die, run: async () => die() };
const deadlyLater: Loop = { name: "deadly-later", model: () => "deadly", run: async () => die() };

const { url, key, capacity } = order;
await startBrains({ url, key, capacity, loops: [slow, deadly, deadlyLater] });
process.stdout.write('{"started":true}\n');
lines.on("close", () => process.exit(0));
