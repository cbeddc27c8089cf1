/** Programs in a hand, with their input, outputs and ends. */
import { describe, expect, it } from "vitest";
import { drain, type Parts } from "./driver-under-test.ts";

export function processes(parts: () => Parts): void {
  const get = () => parts().hand;
  describe("processes", () => {
    it("carries arguments, input, both outputs, variables, directory and the exit status", async () => {
      const hand = get();
      const child = await hand.exec({
        argv: ["/bin/sh", "-c", 'cat; echo "$X|$1|$PWD"; echo oops >&2; exit 7', "sh", "a b'c\n"],
        env: { X: "1=2" },
        cwd: "/",
        stdin: true,
      });
      await child.write("from input\n");
      child.endInput();
      expect(await drain(child.stdout)).toBe("from input\n1=2|a b'c\n|/\n");
      expect(await drain(child.stderr)).toBe("oops\n");
      expect(await child.exit).toEqual({ code: 7 });
    });

    it("reports 127 for a program that is not there, and 137 for a killed one", async () => {
      const missing = await get().exec({ argv: ["no-such-program"] });
      expect(await drain(missing.stderr)).toContain("no-such-program");
      expect(await missing.exit).toEqual({ code: 127 });
      const killed = await get().exec({ argv: ["sleep", "1000"] });
      await killed.kill();
      expect(await killed.exit).toEqual({ code: 137 });
    });

    it("kills a process whose signal aborts", async () => {
      const stop = new AbortController();
      const child = await get().exec({ argv: ["sleep", "1000"] }, stop.signal);
      stop.abort();
      expect(await child.exit).toEqual({ code: 137 });
    });

    it.each([8_191, 8_192, 65_535, 65_536, 1_048_577])("loses none of %i bytes (R11)", async (bytes) => {
      const child = await get().exec({ argv: ["head", "-c", `${bytes}`, "/dev/zero"] });
      expect((await drain(child.stdout)).length).toBe(bytes);
    });
  });
}
