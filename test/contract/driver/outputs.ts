/** What becomes of long and odd output. */
import { createHash } from "node:crypto";
import { describe, expect, it } from "vitest";
import { textOf } from "../../kit/tool-caller.ts";
import { type Parts, readAll } from "./driver-under-test.ts";

export function outputs(get: () => Parts): void {
  describe("output bounds", () => {
    it("keeps head, tail and everything else as an artefact with its digest (R13)", async () => {
      const { hand, call } = get();
      const result = await call.bash("seq 1 40000", { callId: "long/output" });
      const text = textOf(result);
      const [artefact] = result.artefacts;
      const whole = await readAll(hand, artefact?.path ?? "");
      expect(createHash("sha256").update(whole).digest("hex")).toBe(artefact?.sha256);
      expect(artefact?.bytes).toBe(whole.length);
      expect(whole).toBe(Array.from({ length: 40_000 }, (_, i) => `${i + 1}\n`).join(""));
      const line = /\n\[(\d+) bytes dropped; all of it is in (.*)\]\n/.exec(text);
      expect(line?.[2]).toBe(artefact?.path);
      expect(text.startsWith(whole.slice(0, 20_000))).toBe(true);
      expect(text.endsWith(whole.trimEnd().slice(-80_000))).toBe(true);
      expect(Number(line?.[1])).toBe(whole.trimEnd().length - 100_000);
      expect(textOf(await call("read", { file_path: artefact?.path, view_range: [20_000, 20_000] }))).toBe(
        "20000",
      );
    });

    it("needs no artefact for what fits", async () => {
      const result = await get().call.bash("head -c 100000 /dev/zero | tr '\\0' x");
      expect(textOf(result)).toBe("x".repeat(100_000));
      expect(result.artefacts).toEqual([]);
    });

    it("carries NUL, split characters and invalid bytes as the whole would decode (R12)", async () => {
      const result = await get().call.bash(
        String.raw`for b in 61 00 c3 a9 e2 82 ac f0 9f 98 80 ff c3 62; do printf "\x$b"; sleep 0.002; done`,
      );
      expect(textOf(result)).toBe("a\0é€😀��b");
    });

    it("holds little memory while 256 MiB flow", async () => {
      const { call } = get();
      const before = process.memoryUsage().rss;
      let peak = 0;
      const result = await call.bash("head -c 268435456 /dev/zero", {
        onOutput: () => {
          peak = Math.max(peak, process.memoryUsage().rss - before);
        },
      });
      expect(result.artefacts[0]?.bytes).toBe(268_435_456);
      expect(peak).toBeLessThan(200 * 1024 * 1024);
      await get().hand.remove(result.artefacts[0]?.path ?? "");
    });
  });
}
