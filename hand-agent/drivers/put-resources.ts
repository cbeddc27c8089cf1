/** What a hand is given when it is made, on the primitives that every driver has. */
import { resolve } from "node:path";
import type { Hand, HandSpec } from "./driver.ts";

export async function putResources(
  hand: Hand,
  spec: HandSpec,
  signal: AbortSignal | undefined,
): Promise<void> {
  for (const { path, content, mode } of spec.resources ?? []) {
    const bytes = typeof content === "string" ? Buffer.from(content) : content;
    await hand.writeFile(resolve(hand.workdir, path), bytes, {
      ...(mode === undefined ? {} : { mode }),
      ...(signal === undefined ? {} : { signal }),
    });
  }
}
