/** Making, parking, finding again and destroying hands. */
import { describe, expect, it } from "vitest";
import type { Hand } from "../../../hand-agent/drivers/driver.ts";
import { textOf, toolCaller } from "../../kit/tool-caller.ts";
import { type Parts, readAll } from "./driver-under-test.ts";

export function lifeOfAHand(get: () => Parts, provision: () => Promise<Hand>): void {
  const under = () => get().under;
  describe("the life of a hand", () => {
    it("keeps files and loses processes when parked; recover says so (H5, R16)", async () => {
      const { driver } = under();
      const hand = await provision();
      if (!driver.capabilities.park || !hand.park) return hand.destroy().then(() => {});
      expect(hand.resumed).toBe(false);
      await hand.writeFile(`${hand.workdir}/kept.txt`, Buffer.from("kept"));
      await toolCaller(hand).bash("sleep 1000 & echo started");
      expect((await hand.park()).left).toEqual([]);
      const again = await driver.recover(JSON.parse(JSON.stringify(hand.handle)));
      if (again === "gone") throw new Error("the hand is gone");
      expect(again.resumed).toBe(true);
      expect(await readAll(again, `${again.workdir}/kept.txt`)).toBe("kept");
      expect(await again.callProcesses()).toEqual([]);
      await again.destroy();
    });

    it("destroys for good and as often as asked; afterwards the hand is gone and takes no calls", async () => {
      const { driver } = under();
      const hand = await provision();
      await toolCaller(hand).bash("setsid sleep 1000 & nohup sleep 1000 >/dev/null 2>&1 & echo started");
      expect((await hand.destroy()).left).toEqual([]);
      expect((await hand.destroy()).left).toEqual([]);
      expect(await driver.recover(hand.handle)).toBe("gone");
      expect(await driver.listHandIds()).not.toContain(hand.id);
      await expect(hand.exec({ argv: ["true"] })).rejects.toThrow(/released/);
    });

    it("puts resources and variables into the hand", async () => {
      const hand = await under().driver.provision({
        handId: "hand_resources",
        env: { GREETING: "it's me" },
        resources: [{ kind: "inline", path: "conf/a.txt", content: "inline", mode: 0o640 }],
      });
      expect(
        textOf(await toolCaller(hand).bash('echo "$GREETING"; cat conf/a.txt; stat -c " %a" conf/a.txt')),
      ).toBe("it's me\ninline 640");
      await hand.destroy();
    });
  });
}
