/** The folder of named pipes is the hand's own: whatever it does there, later calls work. */
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { ISOLATION_MODES } from "../../hand-agent/drivers/process/isolation.ts";
import { makeProcessDriver, reasonsAgainstModes } from "../kit/process-modes.ts";
import { textOf, toolCaller } from "../kit/tool-caller.ts";

const reasons = await reasonsAgainstModes();

for (const mode of ISOLATION_MODES) {
  describe.skipIf(reasons.get(mode))(`a hand by ${mode} that spoils its own pipes`, () => {
    it.each([
      ["removes them", 'rm -f "$run"/*'],
      ["puts files in their place", 'for p in "$run"/p*; do rm -f "$p"; echo x >"$p"; done'],
      [
        "takes the names that come next",
        'for i in $(seq 0 300); do [ -e "$run/p$i" ] || : >"$run/p$i"; done; rm -f "$run"/p?',
      ],
      ["takes the rights from their folder", 'chmod 0 "$run"; rm -rf "$run" 2>&-'],
    ])("goes on working when it %s", async (_, spoil) => {
      const { driver, dataDir } = makeProcessDriver(mode);
      const hand = await driver.provision({ handId: "hand_pipes" });
      try {
        const { bash } = toolCaller(hand);
        await bash(`X=kept; run="$HOME/../run"; ${spoil}; true`);
        // More than were made ahead.
        for (let call = 0; call < 70; call++) {
          const { isError, content } = await bash("echo $X");
          expect([call, isError, textOf({ content } as never)]).toEqual([call, false, "kept"]);
        }
        expect(textOf(await bash("bash -c 'echo new'", { input: { restart: true } }))).toBe("new");
      } finally {
        await hand.destroy();
      }
      expect(readdirSync(join(dataDir, "hands"))).toEqual([]);
    });

    it("names no file of the agent while something inside removes every pipe at once", async () => {
      const { driver, dataDir } = makeProcessDriver(mode);
      const hand = await driver.provision({ handId: "hand_pipes" });
      try {
        const { bash } = toolCaller(hand);
        await bash('run="$HOME/../run"; (while :; do rm -f "$run"/*; done) >/dev/null 2>&1 &');
        const texts: string[] = [];
        for (let call = 0; call < 5; call++) texts.push(textOf(await bash("echo well")));
        for (const text of texts) expect(text).not.toMatch(/^Error|ENOENT: |TypeError/);
        expect(texts.join("\n")).not.toContain(`'${dataDir}`);
      } finally {
        await hand.destroy();
      }
    });
  });
}
