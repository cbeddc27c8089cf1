/** Runs once around all tests: the programs under test are built from the sources under test, and one Postgres serves the run. */
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { TestProject } from "vitest/node";
import { releaseDocker } from "./docker.ts";
import { PostgresService } from "./postgres-service.ts";

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const build = fileURLToPath(new URL("../../scripts/build.mjs", import.meta.url));
  execFileSync(process.execPath, [build, "--quiet"], { stdio: "inherit" });
  const postgres = await PostgresService.start();
  project.provide("postgresService", postgres.socketPath);
  return async () => {
    try {
      await releaseDocker();
      await postgres.stop();
    } catch (error) {
      // The runner reports a failed teardown, but ends with 0.
      process.exitCode = 1;
      throw error;
    }
  };
}
