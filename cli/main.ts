#!/usr/bin/env node
/** The `tendon` command. */
import { runMain } from "../kit/program.ts";
import { runTendon } from "./tendon.ts";

/** A reader that went away, such as `head`, has seen enough: that is no failure. */
const readerIsGone = new Promise<number>((resolve, reject) => {
  process.stdout.on("error", (error: NodeJS.ErrnoException) =>
    error.code === "EPIPE" ? resolve(0) : reject(error),
  );
});

/** Whoever pages through the output may take their time. */
const STALLED_OUTPUT_MS = 3_600_000;

await runMain("tendon", () => Promise.race([runTendon(process.argv.slice(2)), readerIsGone]), {
  stalledOutputMs: STALLED_OUTPUT_MS,
});
