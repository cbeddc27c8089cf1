// `npm run bench -- NAME`: sets up what is missing, then runs bench/main.ts from its sources.
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { root, setUp } from "./set-up.mjs";

setUp({ withDev: true });
const { status } = spawnSync(
  process.execPath,
  ["--import", "tsx", join(root, "bench/main.ts"), ...process.argv.slice(2)],
  {
    cwd: root,
    stdio: "inherit",
  },
);
process.exitCode = status ?? 1;
