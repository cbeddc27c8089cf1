/** Runs once before all tests: the programs under test are built from the sources under test. */
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";

export default function setup(): void {
  const build = fileURLToPath(new URL("../../scripts/build.mjs", import.meta.url));
  execFileSync(process.execPath, [build, "--quiet"], { stdio: "inherit" });
}
