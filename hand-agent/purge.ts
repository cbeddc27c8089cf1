/**
 * Removes the hands that an agent left on its machine, for whoever takes it away. A person asks for it, on the machine
 * itself: an agent that was revoked, or whose server is gone, destroys nothing by itself (H1), so that files can be saved.
 */
import { access } from "node:fs/promises";
import { join, resolve } from "node:path";
import type { Clock } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import { StartupError } from "../kit/program.ts";
import { claimDataDir } from "./data-dir.ts";
import type { Driver } from "./drivers/driver.ts";

export interface PurgeOptions {
  readonly dataDir: string;
  readonly drivers: readonly Driver[];
  /** Else what would be removed is only told. */
  readonly isMeant: boolean;
  readonly clock: Clock;
  readonly say: (line: string) => void;
}

/** Gives the exit code. Throws StartupError for a directory that is no agent's, or that one is using. */
export async function purge({ dataDir, drivers, isMeant, clock, say }: PurgeOptions): Promise<number> {
  const path = resolve(dataDir);
  await access(join(path, "agent.key")).catch(() => {
    throw new StartupError(`${path} is no hand agent's data directory: it has no agent.key`);
  });
  const claimed = await claimDataDir(path, { clock });
  try {
    let left = 0;
    for (const driver of drivers) left += await purgeDriver(driver, isMeant, say);
    if (!isMeant) say("nothing was removed; with --yes all of it is, files included");
    else if (left === 0) say(`no hand is left; ${path} itself may go now`);
    return left > 0 && isMeant ? 1 : 0;
  } finally {
    await claimed.release();
  }
}

/** How many hands are left. */
async function purgeDriver(driver: Driver, isMeant: boolean, say: (line: string) => void): Promise<number> {
  let left = 0;
  for (const handId of await driver.listHandIds()) {
    if (!isMeant) {
      say(`${handId} (${driver.name})`);
      left += 1;
      continue;
    }
    const why = await driver.discard(handId).then(
      (report) => (report.left.length > 0 ? "some of its processes still run" : ""),
      (error: unknown) => messageOf(error),
    );
    say(why === "" ? `${handId} (${driver.name}) is removed` : `${handId} (${driver.name}) is left: ${why}`);
    if (why !== "") left += 1;
  }
  await driver.close?.();
  return left;
}
