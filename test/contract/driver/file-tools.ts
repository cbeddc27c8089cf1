/** The tools for files on any driver. */
import { describe, expect, it } from "vitest";
import { textOf } from "../../kit/tool-caller.ts";
import type { Parts } from "./driver-under-test.ts";

export function fileTools(get: () => Parts): void {
  describe("read, write, edit, glob and grep", () => {
    const text = async (name: string, input: unknown) => textOf(await get().call(name, input));

    it("writes and reads text, whole and by lines", async () => {
      expect(await text("write", { file_path: "t/a.txt", content: "one\ntwo\nthrée\n" })).toBe(
        "wrote 15 bytes to t/a.txt",
      );
      expect(await text("read", { file_path: "t/a.txt" })).toBe("one\ntwo\nthrée\n");
      expect(await text("read", { file_path: "t/a.txt", view_range: [2, 3] })).toBe("two\nthrée");
      expect(await text("read", { file_path: "t/a.txt", view_range: [3, 0] })).toBe("thrée\n");
      expect(await text("read", { file_path: `${get().hand.workdir}/t/a.txt`, view_range: [1, 1] })).toBe(
        "one",
      );
      expect(await text("write", { file_path: "t/empty", content: "" })).toBe("wrote 0 bytes to t/empty");
      expect(await text("read", { file_path: "t/empty" })).toBe("(no output)");
      expect(textOf(await get().call.bash("stat -c %a t t/a.txt"))).toBe("700\n600");
    });

    it("says what is wrong with a path", async () => {
      expect(await text("read", { file_path: "t/none" })).toBe("read: t/none: no such file or directory");
      expect(await text("read", { file_path: "t" })).toBe("read: t: is a directory");
      expect(await text("read", {})).toBe("read: file_path is required");
      expect(await text("read", { file_path: "t/a.txt", view_range: [9, 9] })).toBe(
        "read: t/a.txt has no line 9",
      );
      for (const name of ["read", "write", "edit"]) {
        const input = { file_path: "/etc/x", content: "", old_string: "a", new_string: "b" };
        expect(await text(name, input)).toBe(`path "/etc/x" is outside the session's working directory`);
      }
      expect(await text("glob", { pattern: "*", path: "../.." })).toMatch(
        /outside the session's working directory/,
      );
    });

    it("reads at most 256 KiB", async () => {
      await get().call.bash(
        "mkdir -p t; head -c 262145 /dev/zero | tr '\\0' x >t/big; seq 1 100000 >t/lines",
      );
      expect(await text("read", { file_path: "t/big" })).toMatch(
        /^read: t\/big is 262145 bytes, exceeds 262144-byte limit/,
      );
      expect(await text("read", { file_path: "t/big", view_range: [1, 1] })).toMatch(
        /exceeds 262144-byte limit/,
      );
      expect(await text("read", { file_path: "t/lines", view_range: [99_999, 0] })).toBe("99999\n100000\n");
      expect(await text("edit", { file_path: "t/big", old_string: "x", new_string: "y" })).toMatch(
        /^edit: t\/big is 262145 bytes/,
      );
    });

    it("edits what is unique, or all of it, and keeps the rest byte for byte", async () => {
      const { call } = get();
      await call.bash("printf 'a.b.a\\xff\\n' >t/e; chmod 755 t/e");
      const edit = (input: object) => text("edit", { file_path: "t/e", ...input });
      expect(await edit({ old_string: "a", new_string: "c" })).toBe(
        "edit: old_string appears 2 times in t/e (must be unique)",
      );
      expect(await edit({ old_string: "zz", new_string: "c" })).toBe("edit: old_string not found in t/e");
      expect(await edit({ old_string: "b", new_string: "$&" })).toBe("edited t/e (1 replacement(s))");
      expect(await edit({ old_string: "a", new_string: "cc", replace_all: true })).toBe(
        "edited t/e (2 replacement(s))",
      );
      expect(textOf(await call.bash("od -An -c t/e; stat -c %a t/e"))).toBe(
        "   c   c   .   $   &   .   c   c 377  \\n\n755",
      );
    });

    it("globs newest first, without .git, node_modules and what leads outside", async () => {
      const { call, hand } = get();
      await call.bash(
        "mkdir -p g/src/deep g/.git g/node_modules; cd g; touch -d @1 src/a.ts; touch -d @3 src/deep/b.ts; touch -d @2 .hidden.ts; touch .git/c.ts node_modules/d.ts; ln -s /etc/hosts out.ts; cd ..",
      );
      const at = (path: string) => `${hand.workdir}/g/${path}`;
      expect(await text("glob", { pattern: "**/*.ts", path: "g" })).toBe(
        [at("src/deep/b.ts"), at(".hidden.ts"), at("src/a.ts")].join("\n"),
      );
      expect(await text("glob", { pattern: "*.py", path: "g" })).toBe("no matches");
      expect(await text("glob", { pattern: "/etc/*" })).toMatch(/^glob: absolute pattern not permitted/);
      expect(await text("glob", { pattern: "../*" })).toMatch(/^glob: '..' is not permitted/);
      await call.bash("mkdir many; cd many; touch $(seq 1 250); cd ..");
      expect((await text("glob", { pattern: "*", path: "many" })).split("\n")).toHaveLength(200);
    });

    it("greps lines with path and number", async () => {
      const { call, hand } = get();
      await call.bash(
        "mkdir -p s/.git; printf 'alpha\\nbeta\\n' >s/x; echo beta >s/.git/y; echo beta >'s/z w'",
      );
      const found = (await text("grep", { pattern: "^be.a$", path: "s" })).split("\n").sort();
      expect(found).toEqual([`${hand.workdir}/s/x:2:beta`, `${hand.workdir}/s/z w:1:beta`]);
      expect(await text("grep", { pattern: "gamma", path: "s" })).toBe("no matches");
      expect(await text("grep", { pattern: "alpha", path: "s/x" })).toBe(`${hand.workdir}/s/x:1:alpha`);
      expect(await text("grep", { pattern: "(", path: "s" })).toMatch(/^grep: (rg failed|invalid regex)/);
      await call.bash("yes 0123456789 | head -n 20000 >s/long");
      expect(await text("grep", { pattern: "0", path: "s/long" })).toMatch(
        /\[output truncated at 102400 bytes\]$/,
      );
    });
  });
}
