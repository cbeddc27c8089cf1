import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { ServerGeneration } from "./server-generation.ts";

test("a number that was there before, also in an earlier life, tells of a database that was set back", async () => {
  const dir = await mkdtemp(join(tmpdir(), "tendon-generation-"));
  try {
    const met = (generation: bigint) => new ServerGeneration(dir).met(generation);
    expect(await met(1n)).toBe(false);
    // Connections whose welcome never came are no sign of anything.
    expect(await met(5n)).toBe(false);
    expect(await met(5n)).toBe(true);
    expect(await met(3n)).toBe(true);
    // From there on it is the newer history.
    expect(await met(4n)).toBe(false);
    await writeFile(join(dir, "connection-number"), "not a number");
    expect(await met(1n)).toBe(false);
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
});
