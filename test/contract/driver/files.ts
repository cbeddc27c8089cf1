/** Files of a hand, and what leads out of it. */
import { describe, expect, it } from "vitest";
import { FileError } from "../../../hand-agent/drivers/driver.ts";
import { eventually } from "../../kit/eventually.ts";
import { type Parts, readAll, sh } from "./driver-under-test.ts";

export function files(parts: () => Parts): void {
  const get = () => parts().hand;
  describe("files", () => {
    const code = (promise: Promise<unknown>) =>
      promise.then(
        () => "no error",
        (error) => (error instanceof FileError ? error.code : error),
      );

    it("makes and reads links without following them, and sets modes, where it offers that", async () => {
      const { readLink, makeLink, setMode } = get();
      if (!readLink || !makeLink || !setMode) return;
      const at = (name: string) => `${get().workdir}/links/${name}`;
      await get().makeLink!(at("out"), "/etc/passwd");
      await get().makeLink!(at("in"), "file");
      expect(await get().readLink!(at("out"))).toBe("/etc/passwd");
      await expect(get().readFile(at("out"))[Symbol.asyncIterator]().next()).rejects.toThrow(FileError);
      await expect(get().makeLink!(at("in"), "other")).rejects.toThrow(FileError);
      await get().writeFile(at("file"), Buffer.from("x"));
      await expect(get().readLink!(at("file"))).rejects.toMatchObject({ code: "not_found" });
      await get().setMode!(at("in"), 0o751);
      expect((await get().stat(at("file"))).mode).toBe(0o751);
      await expect(get().setMode!(at("out"), 0o777)).rejects.toMatchObject({ code: "outside" });
      await get().remove(at("out"));
      await expect(get().readLink!(at("out"))).rejects.toMatchObject({ code: "not_found" });
    });

    it("writes, reads from an offset, renames, walks and removes", async () => {
      const hand = get();
      const dir = `${hand.workdir}/files/deep`;
      expect(await hand.writeFile(`${dir}/a.bin`, slow(["ab", "cd"]))).toEqual({ bytes: 4 });
      expect(await readAll(hand, `${dir}/a.bin`, 2)).toBe("cd");
      await hand.rename(`${dir}/a.bin`, `${dir}/b.bin`);
      await hand.mkdir(`${dir}/c`);
      await hand.mkdir(`${dir}/c`);
      const walked = [];
      for await (const entry of hand.walk(`${hand.workdir}/files`))
        walked.push(`${entry.type} ${entry.path.slice(dir.length - 5)}`);
      expect(walked.sort()).toEqual(["directory /deep", "directory /deep/c", "file /deep/b.bin"]);
      expect(await hand.stat(`${dir}/b.bin`)).toMatchObject({
        type: "file",
        size: 4,
        mode: 0o600,
        path: `${dir}/b.bin`,
      });
      await hand.remove(`${dir}/b.bin`);
      await hand.remove(`${dir}/b.bin`);
      expect(await code(hand.stat(`${dir}/b.bin`))).toBe("not_found");
    });

    it("follows links inside and refuses those that lead outside", async () => {
      const hand = get();
      await sh(
        hand,
        "mkdir -p links/real && echo in >links/real/f && cd links && ln -s real to && ln -s ../../.. up && ln -s /etc etc && ln -s loop loop && ln -s $PWD/real abs",
      );
      const at = (path: string) => `${hand.workdir}/links/${path}`;
      expect(await readAll(hand, at("to/f"))).toBe("in\n");
      expect((await hand.stat(at("abs/f"))).path).toBe(at("real/f"));
      for (const path of ["etc/passwd", "up/x", "etc"])
        expect(await code(hand.stat(at(path)))).toBe("outside");
      expect(await code(hand.writeFile(at("etc/x"), Buffer.from("x")))).toBe("outside");
      expect(await code(hand.stat("/etc/passwd"))).toBe("outside");
      expect(await code(hand.stat(`${hand.workdir}/../hand.json`))).toBe("outside");
      expect(await code(hand.stat(at("loop")))).toBe("too_many_links");
      expect(await code(hand.stat(at("real/f/x")))).toBe("not_a_directory");
    });

    it("refuses directories and named pipes without waiting for them", async () => {
      const hand = get();
      await sh(hand, "mkfifo pipe; mkdir dir");
      expect(await code(readAll(hand, `${hand.workdir}/pipe`))).toBe("not_a_file");
      expect(await code(readAll(hand, `${hand.workdir}/dir`))).toBe("is_a_directory");
      expect(await code(hand.writeFile(`${hand.workdir}/pipe`, Buffer.from("x")))).toBe("not_a_file");
      expect(await code(hand.writeFile(`${hand.workdir}/dir`, Buffer.from("x")))).toBe("is_a_directory");
    });

    it("leaves the old file and nothing else when a write is cancelled", async () => {
      const hand = get();
      await sh(hand, "mkdir atomic; echo old >atomic/f; chmod 750 atomic/f");
      const stop = new AbortController();
      const content = (async function* () {
        yield Buffer.from("new");
        stop.abort();
        yield Buffer.from("er");
      })();
      await expect(
        hand.writeFile(`${hand.workdir}/atomic/f`, content, { signal: stop.signal }),
      ).rejects.toThrow();
      expect(await sh(hand, "ls -A atomic; cat atomic/f")).toBe("f\nold\n");
      await hand.writeFile(`${hand.workdir}/atomic/f`, Buffer.from("new\n"));
      expect(await sh(hand, "stat -c %a atomic/f; cat atomic/f")).toBe("750\nnew\n");
    });
  });
}

/** Takes as long as both outcomes take to be seen. */
export function fileRaces(parts: () => Parts): void {
  const get = () => parts().hand;
  describe("races for files", () => {
    it("never reads outside while a process swaps a directory for a link", async () => {
      const hand = get();
      const flipper = await hand.exec({
        argv: [
          "/bin/bash",
          "-c",
          "mkdir -p race/d race/e; echo mine >race/d/hostname; cd race; ln -s /etc l; while :; do mv -T d e; mv -T l d; mv -T d l; mv -T e d; done",
        ],
      });
      await eventually(() => hand.stat(`${hand.workdir}/race/l`).catch((error) => error.code === "outside"));
      const seen = new Set<string>();
      const isWide = () => seen.has("mine\n") && seen.has("error outside");
      for (const began = performance.now(), i = { reads: 0 }; i.reads < 500 || !isWide(); i.reads++) {
        seen.add(await readAll(hand, `${hand.workdir}/race/d/hostname`).catch((e) => `error ${e.code}`));
        if (performance.now() - began > 15_000) break;
      }
      await flipper.kill();
      const allowed = [
        "mine\n",
        "error outside",
        "error not_found",
        "error not_a_directory",
        "error too_many_links",
      ];
      expect([...seen].filter((text) => !allowed.includes(text))).toEqual([]);
      expect(seen).toContain("mine\n");
    });
  });
}

async function* slow(parts: readonly string[]): AsyncGenerator<Uint8Array> {
  for (const part of parts) yield Buffer.from(part);
}
