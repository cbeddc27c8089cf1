/** `tendon hand cp`, `hand-over` and what `provision` gives, against a running installation. */
import {
  chmodSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { atOwnPort, Installation } from "../kit/start-process.ts";

const installation = new Installation();
const json = <T = { id: string }>(...args: string[]) => installation.json<T>(...args);
let dir = "";
let handId = "";

beforeAll(async () => {
  await installation.start(await atOwnPort()).ready();
  dir = mkdtempSync(join(tmpdir(), "tendon-copies-"));
  writeFileSync(join(dir, "tool"), "#!/bin/sh\necho ran");
  chmodSync(join(dir, "tool"), 0o755);
  const given = ["--file", `${join(dir, "tool")}=bin/tool`, "--variable", "A=b", "--setup", "bin/tool > ran"];
  handId = (await json("hand", "provision", ...given)).id;
});
afterAll(async () => {
  await installation.dispose();
  rmSync(dir, { recursive: true, force: true });
});

const bash = async (command: string) =>
  (await installation.tendon(["hand", "exec", handId, command])).stdout.trim();

test("a hand has what provision gave it", async () => {
  expect(await bash("cat ran; echo $A; stat -c %a bin/tool")).toBe("ran\nb\n755");
});

test("files and folders go in and come out; what is there here is never written over", async () => {
  mkdirSync(join(dir, "src/deep"), { recursive: true });
  writeFileSync(join(dir, "src/deep/a"), "content");
  chmodSync(join(dir, "src/deep/a"), 0o640);
  symlinkSync("deep/a", join(dir, "src/link"));
  const copied = await json<{ bytes: number; to: string }>("hand", "cp", join(dir, "tool"), `${handId}:`);
  expect(copied).toMatchObject({ bytes: 18, to: `${handId}:tool` });
  await json("hand", "cp", join(dir, "src"), `${handId}:in`);
  expect(await bash("./tool; cat in/link; stat -c %a in/deep/a")).toBe("ran\ncontent640");
  await json("hand", "cp", `${handId}:in`, join(dir, "out"));
  expect(readFileSync(join(dir, "out/deep/a"), "utf8")).toBe("content");
  expect(statSync(join(dir, "out/deep/a")).mode & 0o777).toBe(0o640);
  expect(readlinkSync(join(dir, "out/link"))).toBe("deep/a");
  await json("hand", "cp", `${handId}:tool`, join(dir, "out/"));
  expect(statSync(join(dir, "out/tool")).mode & 0o777).toBe(0o755);
  const again = await installation.tendon(["hand", "cp", `${handId}:in`, join(dir, "out/deep/a")]);
  expect([again.code, again.stderr]).toEqual([2, expect.stringContaining("is there already")]);
  const nothing = await installation.tendon(["hand", "cp", `${handId}:nothing`, join(dir, "nothing")]);
  expect([nothing.code, nothing.stderr]).toEqual([1, expect.stringContaining("no such file")]);
  const both = await installation.tendon(["hand", "cp", "a", "b"]);
  expect([both.code, both.stderr]).toEqual([2, expect.stringContaining("HAND:PATH")]);
});

test("what comes from a hand does not lead out of the folder that it is copied to", async () => {
  await bash("mkdir -p bad; echo x > bad/file; ln -s /etc/passwd bad/outward; ln -s file bad/inward");
  const copied = await installation.tendon(["hand", "cp", `${handId}:bad`, join(dir, "bad")]);
  expect([copied.code, copied.stderr]).toEqual([
    0,
    'left out: the link "outward" leads out of the folder, to "/etc/passwd"\n',
  ]);
  expect(readFileSync(join(dir, "bad/file"), "utf8")).toBe("x\n");
  expect(readlinkSync(join(dir, "bad/inward"))).toBe("file");
  expect(() => lstatSync(join(dir, "bad/outward"))).toThrow("ENOENT");
});

test("a hand is passed on to a session; the list says why it is where it is", async () => {
  const { id } = await json("session", "create");
  const passed = await json<Record<string, string>>("hand", "hand-over", handId, id, "--slot", "given");
  expect(passed).toMatchObject({ session_id: id, slot: "given", owner_number: "2" });
  const refused = await installation.tendon(["hand", "cp", `${handId}:tool`, join(dir, "no")]);
  expect([refused.code, refused.stderr]).toEqual([1, expect.stringContaining("reason")]);
  await json("hand", "cp", "--reason", "to look", `${handId}:tool`, join(dir, "looked"));
  const { stdout } = await installation.tendon(["hand", "list", "--session", id]);
  expect(stdout).toMatch(/HAND AGENT.*WHY/);
  expect(stdout).toMatch(new RegExp(`${handId}.*given.*placed on local`));
});
