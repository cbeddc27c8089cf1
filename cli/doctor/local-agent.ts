/** What the hand agent's program says of this machine: `--doctor`, which makes nothing and asks no server. */
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { programFile } from "../program-files.ts";

const WITHIN_MS = 20_000;

export interface LocalAgent {
  /** A line for each kind of hand. */
  readonly isolation: readonly string[];
  /** Why hands cannot have a limited network here; empty where they can. */
  readonly noLimitedNetwork: string;
}

/** Undefined when the program cannot be asked. */
export async function askLocalAgent(): Promise<LocalAgent | undefined> {
  try {
    const file = programFile("hand-agent");
    const options = { timeout: WITHIN_MS, maxBuffer: 1024 * 1024 };
    // It ends with 1 when this machine can make no hands, and has said why all the same.
    const { stdout } = await promisify(execFile)(process.execPath, [file, "--doctor"], options).catch(
      (error: { stdout: string }) => error,
    );
    return localAgentOf(JSON.parse(stdout));
  } catch {
    return undefined;
  }
}

export function localAgentOf(report: unknown): LocalAgent {
  const { drivers, limitedNetwork } = report as {
    drivers?: unknown;
    limitedNetwork?: { available?: unknown; reason?: unknown };
  };
  const lines = (Array.isArray(drivers) ? drivers : []).map(
    ({ name, available, detail }: { name?: unknown; available?: unknown; detail?: unknown }) =>
      `${name}: ${available === true ? "" : "hands cannot be made here: "}${detail} (this machine)`,
  );
  const reason = String(limitedNetwork?.reason ?? "this build does not say");
  return { isolation: lines, noLimitedNetwork: limitedNetwork?.available === true ? "" : reason };
}
