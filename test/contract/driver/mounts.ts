/** Directories that the agent keeps in a hand, where the driver has them. */
import { describe, expect, it } from "vitest";
import { FileError, type Hand, type HandMounts } from "../../../hand-agent/drivers/driver.ts";
import { type Parts, readAll, sh } from "./driver-under-test.ts";

const WRITABLE = "/mnt/memory/notes";
const KEPT = "/mnt/session";
const SPECS = [
  { path: WRITABLE, readOnly: false },
  { path: KEPT, readOnly: true },
];

export function mounts(parts: () => Parts): void {
  describe("mounts", () => {
    let made = 0;
    /** A hand with both kinds, where the driver has mounts. */
    async function withMounts(use: (hand: Hand, its: HandMounts) => Promise<void>): Promise<void> {
      const { driver } = parts().under;
      if (driver.capabilities.mounts !== true) return;
      const hand = await driver.provision({ handId: `hand_mounts${made++}`, mounts: SPECS });
      try {
        await use(hand, hand.mounts!);
      } finally {
        await driver.discard(hand.id);
      }
    }
    const code = (promise: Promise<unknown>) =>
      promise.then(
        () => "no error",
        (error) => (error instanceof FileError ? error.code : error),
      );
    const text = async ({ files }: HandMounts, path: string) => {
      const chunks: Uint8Array[] = [];
      for await (const chunk of files.readFile(path)) chunks.push(chunk);
      return Buffer.concat(chunks).toString();
    };

    it("are filled by the agent, and read and changed by processes as far as they may", () =>
      withMounts(async (hand, its) => {
        const [notes, log] = [its.seenAt(WRITABLE), its.seenAt(KEPT)];
        await its.files.writeFile(`${WRITABLE}/deep/a`, Buffer.from("one"), { mode: 0o600 });
        await its.files.writeFrom(`${KEPT}/events`, 0, Buffer.from("a\n"), 0o644);
        expect(await sh(hand, `cat ${notes}/deep/a ${log}/events`)).toBe("onea\n");
        await sh(hand, `echo two >${notes}/deep/a; mkdir ${notes}/new; echo x >${notes}/new/b`);
        expect(await text(its, `${WRITABLE}/deep/a`)).toBe("two\n");
        expect(await text(its, `${WRITABLE}/new/b`)).toBe("x\n");
        if (!its.areKept) return;
        const tries = [`echo x >>${log}/events`, `touch ${log}/y`, `rm ${log}/events`, `touch ${notes}/../y`];
        for (const attempt of tries)
          expect(await sh(hand, `(${attempt}) 2>/dev/null || echo no`)).toBe("no\n");
        expect(await text(its, `${KEPT}/events`)).toBe("a\n");
      }));

    it("grow in place for programs that have them open", () =>
      withMounts(async (hand, its) => {
        await its.files.writeFrom(`${KEPT}/events`, 0, Buffer.from("a\n"), 0o644);
        const follow = await hand.exec({
          argv: [
            "/bin/bash",
            "-c",
            `exec 3<${its.seenAt(KEPT)}/events; read -r x <&3; while ! read -r y <&3; do sleep 0.02; done; echo $x$y`,
          ],
        });
        follow.stderr.abandon();
        await its.files.writeFrom(`${KEPT}/events`, 2, Buffer.from("b\n"), 0o644);
        const chunks: Uint8Array[] = [];
        for await (const chunk of follow.stdout.chunks) chunks.push(chunk);
        expect(Buffer.concat(chunks).toString()).toBe("ab\n");
      }));

    it("are reached by the hand's own file primitives, which change no read-only one", () =>
      withMounts(async (hand, its) => {
        await its.files.writeFile(`${KEPT}/f`, Buffer.from("kept"), { mode: 0o644 });
        await hand.writeFile(`${WRITABLE}/x/y`, Buffer.from("by a tool"));
        expect(await readAll(hand, `${WRITABLE}/x/y`)).toBe("by a tool");
        expect(await readAll(hand, `${KEPT}/f`)).toBe("kept");
        const write = (path: string) => code(hand.writeFile(path, Buffer.from("x")));
        expect(await write(`${KEPT}/f`)).toBe("permission");
        expect(await write(`${KEPT}/deep/new`)).toBe("permission");
        expect(await code(hand.remove(`${KEPT}/f`))).toBe("permission");
        expect(await code(hand.mkdir(`${KEPT}/d`))).toBe("permission");
        await sh(hand, `ln -s ${its.seenAt(KEPT)} link; ln -s /etc ${its.seenAt(WRITABLE)}/out`);
        expect(await write(`${hand.workdir}/link/deep/new`)).not.toBe("no error");
        expect(await code(its.files.stat(`${WRITABLE}/out/passwd`))).toBe("outside");
        expect(await code(hand.stat("/mnt/memory/other"))).toBe("outside");
        const found = [];
        for await (const { path } of its.files.walk(KEPT)) found.push(path);
        expect(found).toEqual([`${KEPT}/f`]);
      }));

    it("stay with the hand's files over its processes' end", () =>
      withMounts(async (hand, its) => {
        await its.files.writeFile(`${WRITABLE}/a`, Buffer.from("stays"));
        await its.files.writeFile(`${KEPT}/b`, Buffer.from("too"), { mode: 0o644 });
        await hand.park?.();
        const back = await parts().under.driver.recover(hand.handle);
        if (back === "gone") throw new Error("the hand is gone");
        const seen = back.mounts!;
        expect(await sh(back, `cat ${seen.seenAt(WRITABLE)}/a ${seen.seenAt(KEPT)}/b`)).toBe("staystoo");
        expect(await seen.files.removeEmpty(WRITABLE)).toBe(false);
      }));
  });
}
