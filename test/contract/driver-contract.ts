/** What every driver must do, and what the tools must do on top of it. Run it for each driver and each of its modes. */
import { afterAll, beforeAll, describe } from "vitest";
import type { Hand } from "../../hand-agent/drivers/driver.ts";
import { type ToolCaller, toolCaller } from "../kit/tool-caller.ts";
import { bash } from "./driver/bash.ts";
import type { DriverUnderTest, Part } from "./driver/driver-under-test.ts";
import { fileTools } from "./driver/file-tools.ts";
import { fileRaces, files } from "./driver/files.ts";
import { handsById } from "./driver/hands-by-id.ts";
import { lifeOfAHand } from "./driver/life-of-a-hand.ts";
import { mounts } from "./driver/mounts.ts";
import { outputs } from "./driver/outputs.ts";
import { ownership } from "./driver/process-ownership.ts";
import { processes } from "./driver/processes.ts";

/** All of the suite. A slow driver may have some of them run elsewhere, and a mode what no mode changes once. */
export const PARTS = {
  handsById,
  lifeOfAHand,
  processes,
  files,
  fileRaces,
  mounts,
  ownership,
  bash,
  outputs,
  fileTools,
} as const;

export function describeDriver(
  name: string,
  make: () => Promise<DriverUnderTest>,
  skip?: string,
  parts: readonly Part[] = Object.values(PARTS),
): void {
  describe.skipIf(skip !== undefined)(`the ${name} driver${skip ? ` (skipped: ${skip})` : ""}`, () => {
    let under: DriverUnderTest;
    let hand: Hand;
    let call: ToolCaller;
    let hands = 0;
    const provision = () => under.driver.provision({ handId: `hand_contract${hands++}` });

    beforeAll(async () => {
      under = await make();
      hand = await provision();
      call = toolCaller(hand);
    });
    afterAll(async () => {
      await hand?.destroy();
      await under?.dispose();
    });

    for (const part of parts) part(() => ({ hand, call, under }), provision);
  });
}
