/** Process drivers for tests, and which kinds of isolation this machine has. */
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";
import { ISOLATION_MODES, type IsolationMode } from "../../hand-agent/drivers/process/isolation.ts";
import { ProcessDriver } from "../../hand-agent/drivers/process/process-driver.ts";
import { TOOL_DEFINITIONS } from "../../hand-agent/tools/registry.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";

const dirs: string[] = [];
afterAll(() => {
  for (const dir of dirs) rmSync(dir, { recursive: true, force: true });
});

/** Is gone after the test file. */
export function makeTestDir(): string {
  const dir = mkdtempSync(join(tmpdir(), "tendon-driver-"));
  dirs.push(dir);
  return dir;
}

/** With a data directory of its own. */
export function makeProcessDriver(isolation: "auto" | IsolationMode): {
  driver: ProcessDriver;
  dataDir: string;
} {
  const dataDir = makeTestDir();
  chmodSync(dataDir, 0o711);
  const driver = new ProcessDriver({
    dataDir,
    clock: systemClock,
    log: createLogger("test", "silent"),
    isolation,
    tools: TOOL_DEFINITIONS,
  });
  return { driver, dataDir };
}

/** Why a mode is not possible here; undefined where it is. */
export async function reasonsAgainstModes(): Promise<ReadonlyMap<IsolationMode, string | undefined>> {
  const reasons = new Map<IsolationMode, string | undefined>();
  for (const mode of ISOLATION_MODES) {
    const probe = await makeProcessDriver(mode).driver.probe();
    reasons.set(mode, probe.available ? undefined : probe.reason);
  }
  return reasons;
}
