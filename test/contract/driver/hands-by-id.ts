/** What holds of all hands, also of those with neither a shell nor files: how they are named, made and given up. */
import { describe, expect, it } from "vitest";
import type { Parts } from "./driver-under-test.ts";

export function handsById(get: () => Parts): void {
  const under = () => get().under;
  describe("hands by their ids", () => {
    it("probes as available and says how strong it is", async () => {
      const probe = await under().driver.probe();
      expect(probe).toMatchObject({
        available: true,
        isolation: expect.any(String),
        detail: expect.any(String),
      });
    });

    it("gives the same hand for the same id (R15), also when asked twice at once", async () => {
      const { driver } = under();
      const [a, b] = await Promise.all([1, 2].map(() => driver.provision({ handId: "hand_twice" })));
      expect(a).toBe(b);
      expect(await driver.provision({ handId: "hand_twice" })).toBe(a);
      expect(await driver.recover(a?.handle ?? null)).toBe(a);
      await a?.destroy();
    });

    it("leaves nothing of a hand that could not be made, and discards any id", async () => {
      const { driver } = under();
      await expect(driver.provision({ handId: "hand_bad", env: { "NOT A NAME": "x" } })).rejects.toThrow(
        /NOT A NAME/,
      );
      await expect(driver.provision({ handId: "../outside" })).rejects.toThrow(/id/);
      const stop = AbortSignal.abort();
      await expect(driver.provision({ handId: "hand_aborted" }, stop)).rejects.toThrow();
      expect(await driver.listHandIds()).not.toContain("hand_aborted");
      expect(await driver.discard("hand_never")).toEqual({ left: [] });
    });
  });
}
