// `npm test`: sets up what is missing, then runs all tests. Arguments go to the test runner: `npm test -- server/session`.
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { root, setUp } from "./set-up.mjs";

setUp({ withDev: true });
const vitest = join(root, "node_modules/vitest/vitest.mjs");
const { status, signal } = spawnSync(process.execPath, [vitest, "run", ...process.argv.slice(2)], {
  cwd: root,
  stdio: "inherit",
});
process.exitCode = signal === null ? (status ?? 1) : 1;
