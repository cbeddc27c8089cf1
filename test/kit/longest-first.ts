/**
 * The order of test files: those that take longest first, so that none of them runs at the end with nothing beside it. The
 * runner itself knows durations only where it ran before; a fresh clone would begin with the longest texts.
 */
import { existsSync } from "node:fs";
import { join, relative } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/** Seconds on two busy processors, of files above 25, and of the longest unit test. Roughly: only their order counts. */
const LONG_FILES: Readonly<Record<string, number>> = {
  "test/interop/interop.test.ts": 100,
  "test/e2e/start.test.ts": 80,
  "test/contract/process-driver.test.ts": 75,
  "test/faults/hand-long-calls.test.ts": 75,
  "test/faults/hand-at-most-once.test.ts": 75,
  "test/e2e/commands.test.ts": 70,
  "test/faults/brain-restarts.test.ts": 65,
  "test/integration/hand-agent-with-server.test.ts": 50,
  "test/integration/harness-with-server.test.ts": 50,
  "test/integration/store-embedded.test.ts": 45,
  "test/integration/hand-network-life.test.ts": 45,
  "test/integration/loop-external.test.ts": 40,
  "test/integration/tunnels.test.ts": 40,
  "test/integration/hand-agent.test.ts": 40,
  "test/contract/docker-driver.test.ts": 40,
  "test/integration/hand-driver-failures.test.ts": 38,
  "test/integration/replicas-failures.test.ts": 37,
  "test/faults/hand-silence.test.ts": 35,
  "test/integration/store-migrate.test.ts": 33,
  "test/integration/docker-hands.test.ts": 33,
  "test/e2e/recovery.test.ts": 32,
  "test/integration/harness-lease.test.ts": 30,
  "test/integration/repositories-life.test.ts": 29,
  "test/integration/pooler-programs.test.ts": 28,
  "test/faults/hand-provision-crashes.test.ts": 27,
  "test/faults/log-under-fire.test.ts": 26,
  "hand-agent/drivers/docker/lane-script.test.ts": 12,
};

export default class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const root = this.ctx.config.root;
    const gone = Object.keys(LONG_FILES).filter((path) => !existsSync(join(root, path)));
    if (gone.length > 0)
      throw new Error(`test/kit/longest-first.ts names what is not there: ${gone.join(", ")}`);
    const seconds = ({ moduleId }: TestSpecification) => LONG_FILES[relative(root, moduleId)] ?? 0;
    // Sorting is stable: the others keep the runner's order.
    return (await super.sort(files)).sort((a, b) => seconds(b) - seconds(a));
  }
}
