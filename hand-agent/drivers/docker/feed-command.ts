/** Runs a program of the machine, such as iptables, with what it reads. Rejects with what it complains about. */
import { spawn } from "node:child_process";
import { type Clock, within } from "../../../kit/clock.ts";

const WITHIN_MS = 10_000;

export function feedCommand(command: readonly string[], input: string, clock: Clock): Promise<void> {
  const name = command.find((word) => word.startsWith("ip")) ?? command[0];
  return within(clock, WITHIN_MS, feed(command, input), () => new Error(`${name} did not end`));
}

function feed([program = "", ...args]: readonly string[], input: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, {
      stdio: ["pipe", "ignore", "pipe"],
      env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin" },
    });
    let said = "";
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      said = (said + text).slice(-1_000);
    });
    child.on("error", reject);
    child.stdin.on("error", () => {});
    child.on("close", (code) => {
      if (code === 0) resolve();
      else reject(new Error(said.trim() || `${program} ended with ${code}`));
    });
    child.stdin.end(input);
  });
}
