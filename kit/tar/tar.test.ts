import { execFileSync } from "node:child_process";
import {
  chmodSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { readTar } from "./read-tar.ts";
import { partsOfTarName, type TarEntry, TarError } from "./tar-entry.ts";
import { TAR_END, tarHeader, tarPadding } from "./write-tar.ts";

const dirs: string[] = [];
afterEach(() => {
  for (const dir of dirs.splice(0)) rmSync(dir, { recursive: true, force: true });
});

function scratch(): string {
  const dir = mkdtempSync(join(tmpdir(), "tendon-tar-"));
  dirs.push(dir);
  return dir;
}

async function* inPieces(bytes: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function read(archive: Uint8Array, pieceBytes = 1_000) {
  const found: { entry: TarEntry; text: string }[] = [];
  for await (const { entry, content } of readTar(inPieces(archive, pieceBytes))) {
    const pieces: Uint8Array[] = [];
    for await (const piece of content) pieces.push(piece);
    found.push({ entry, text: Buffer.concat(pieces).toString() });
  }
  return found;
}

const file = (name: string, size: number, extra: Partial<TarEntry> = {}): TarEntry => ({
  name,
  type: "file",
  size,
  mode: 0o644,
  mtimeMs: 1_700_000_000_000,
  linkTarget: "",
  ...extra,
});

const LONG = `${"deep-directory/".repeat(20)}ünïcode-${"n".repeat(200)}`;

function archiveOf(entries: [TarEntry, string][]): Buffer {
  const parts = entries.flatMap(([entry, text]) => [
    tarHeader(entry),
    Buffer.from(text),
    tarPadding(entry.size),
  ]);
  return Buffer.concat([...parts, TAR_END]);
}

test("what is written is read again, in pieces of any size, with names and links beyond 100 bytes", async () => {
  const entries: [TarEntry, string][] = [
    [file(".", 0, { type: "directory", mode: 0o700 }), ""],
    [file("a", 5, { mode: 0o755 }), "hello"],
    [file(LONG, 513), "x".repeat(513)],
    [file("empty", 0), ""],
    [file("link", 0, { type: "symlink", mode: 0o777, linkTarget: `../${LONG}` }), ""],
    [file("again", 0, { type: "hardlink", linkTarget: "a" }), ""],
  ];
  for (const pieceBytes of [1, 7, 512, 100_000]) {
    const found = await read(archiveOf(entries), pieceBytes);
    expect(found.map(({ entry, text }) => [entry, text])).toEqual(entries);
  }
});

test("the tar command reads what is written, and its own archives are read: pax, GNU and old ustar", async () => {
  const dir = scratch();
  const out = join(dir, "out");
  mkdirSync(out);
  writeFileSync(
    join(dir, "a.tar"),
    archiveOf([
      [file(LONG, 3), "abc"],
      [file("x", 1, { mode: 0o755 }), "y"],
    ]),
  );
  execFileSync("tar", ["-xf", join(dir, "a.tar"), "-C", out]);
  expect(readFileSync(join(out, LONG), "utf8")).toBe("abc");
  symlinkSync("x", join(out, "to-x"));
  linkSync(join(out, "x"), join(out, "z-same-as-x"));
  chmodSync(join(out, "x"), 0o750);
  for (const format of ["gnu", "pax", "ustar"]) {
    const what = format === "ustar" ? ["x", "to-x", "z-same-as-x"] : ["."];
    const found = await read(
      execFileSync("tar", ["-C", out, `--format=${format}`, "-cf", "-", "--sort=name", ...what]),
    );
    const facts = found.map(({ entry, text }) => [
      entry.name.replace(/^\.\//, ""),
      entry.type,
      entry.linkTarget,
      text,
    ]);
    expect(facts).toContainEqual(["x", "file", "", "y"]);
    expect(facts).toContainEqual(["to-x", "symlink", "x", ""]);
    expect(facts.find(([name]) => name === "z-same-as-x")?.[1]).toBe("hardlink");
    expect(found.find(({ entry }) => /(^|\/)x$/.test(entry.name))?.entry.mode).toBe(0o750);
    if (format !== "ustar") expect(facts).toContainEqual([LONG, "file", "", "abc"]);
  }
});

test("content that is not read is passed over", async () => {
  const names: string[] = [];
  const archive = archiveOf([
    [file("a", 2_000), "x".repeat(2_000)],
    [file("b", 1), "y"],
  ]);
  for await (const { entry } of readTar(inPieces(archive, 300))) names.push(entry.name);
  expect(names).toEqual(["a", "b"]);
});

test("an archive that is cut off anywhere, or is none, is an error, never a shorter archive (R11)", async () => {
  const archive = archiveOf([
    [file("a", 600), "x".repeat(600)],
    [file(LONG, 1), "y"],
  ]);
  for (let length = 0; length <= archive.length - TAR_END.length; length += 100)
    await expect(read(archive.subarray(0, length))).rejects.toThrow(TarError);
  await expect(read(Buffer.from("hello ".repeat(200)))).rejects.toThrow("no tar archive");
  const broken = Buffer.from(archive);
  broken[3] = 7;
  await expect(read(broken)).rejects.toThrow("checksum");
});

test("devices are refused by name, and what would fill the reader's memory is refused", async () => {
  const device = Buffer.from(tarHeader(file("null", 0)));
  device.write("3", 156, "latin1");
  device.write("        ", 148, "latin1");
  const sum = device.reduce((total, byte) => total + byte, 0);
  device.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  await expect(read(Buffer.concat([device, TAR_END]))).rejects.toThrow('"null" is no file');
  const huge = tarHeader(file("n".repeat(200_000), 0));
  await expect(read(Buffer.concat([huge, TAR_END]))).rejects.toThrow("more than");
});

test.each(["/etc/passwd", "../x", "a/../../x", "a/..", "a\0b", "n".repeat(5_000)])(
  "the name %j is refused",
  (name) => {
    expect(() => partsOfTarName(name)).toThrow(TarError);
  },
);

test("names are taken apart without what means nothing", () => {
  expect(partsOfTarName("./a//b/./c/")).toEqual(["a", "b", "c"]);
  expect(partsOfTarName("./")).toEqual([]);
});
