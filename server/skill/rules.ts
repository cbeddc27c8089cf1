/** What a skill is: one directory with a SKILL.md that says its name and what it is for (pure). Errors name the file. */
import { parse } from "yaml";
import { invalidField, TendonError } from "../../kit/errors.ts";

export const MAX_SKILL_BYTES = 30 * 1024 * 1024;
export const MAX_SKILL_FILES = 1_000;

const NAME = /^[a-z0-9]+(-[a-z0-9]+)*$/;
const MAX_NAME_CHARS = 64;
const MAX_DESCRIPTION_CHARS = 1024;
/** Names that promise who made it. */
const RESERVED = /anthropic|claude/;
const HEAD = /^\uFEFF?---[ \t]*\r?\n([\s\S]*?)\r?\n---[ \t]*(\r?\n|$)/;
const MAX_HEAD_CHARS = 16 * 1024;
const MANIFEST = "SKILL.md";
/** Control and format characters, and the two separators that some programs take for line ends. */
const UNSEEN = /[\p{Cc}\p{Cf}\u2028\u2029]/u;
const MAX_PARTS = 20;
const MAX_PART_BYTES = 255;

export interface UploadedSkillFile {
  /** With the skill's directory. */
  readonly path: string;
  readonly bytes: Uint8Array;
  readonly executable: boolean;
}

export interface CheckedSkill {
  readonly name: string;
  readonly description: string;
  /** Paths below the directory. */
  readonly files: readonly UploadedSkillFile[];
}

/** Throws INVALID_FIELD. */
export function checkSkill(files: readonly UploadedSkillFile[]): CheckedSkill {
  if (files.length === 0) throw invalidField("files", "a skill has files");
  if (files.length > MAX_SKILL_FILES) throw invalidField("files", `at most ${MAX_SKILL_FILES} files`);
  const partsOf = files.map(({ path }) => checkedParts(path));
  const [directory] = partsOf[0]!;
  if (partsOf.some((parts) => parts.length < 2 || parts[0] !== directory))
    throw invalidField("files", "all files of a skill lie in one directory");
  const own = files.map((file, at) => ({
    path: partsOf[at]!.slice(1).join("/"),
    bytes: file.bytes,
    executable: file.executable || startsProgram(file.bytes),
  }));
  checkDistinct(own.map(({ path }) => path));
  const manifest = own.find(({ path }) => path === MANIFEST);
  if (manifest === undefined) throw invalidField("files", `the directory has no ${MANIFEST}`);
  const { name, description } = headOf(manifest.bytes);
  if (name !== directory)
    throw invalidField(MANIFEST, `its name is "${name}", and that of its directory is "${directory}"`);
  return { name, description, files: own };
}

function checkedParts(path: string): string[] {
  const parts = path.split("/");
  if (UNSEEN.test(path)) throw invalidField("files", "paths must hold no control or format characters");
  if (parts.length > MAX_PARTS) throw invalidField("files", `"${path}" has more than ${MAX_PARTS} parts`);
  if (path.includes("\\") || parts.some((part) => part === "" || part === "." || part === ".."))
    throw invalidField("files", `"${path}" is no path below a directory`);
  if (parts.some((part) => Buffer.byteLength(part) > MAX_PART_BYTES))
    throw invalidField("files", `"${path}" has a part of more than ${MAX_PART_BYTES} bytes`);
  return parts;
}

function checkDistinct(paths: readonly string[]): void {
  const seen = new Set<string>();
  for (const path of paths) {
    if (seen.has(path)) throw invalidField("files", `"${path}" comes twice`);
    seen.add(path);
  }
  for (const path of paths)
    for (let at = path.indexOf("/"); at > 0; at = path.indexOf("/", at + 1))
      if (seen.has(path.slice(0, at))) throw invalidField("files", `"${path}" lies below a file`);
}

function headOf(bytes: Uint8Array): { name: string; description: string } {
  const head = fieldsOf(bytes);
  const { name, description } = head;
  if (typeof name !== "string" || !NAME.test(name) || name.length > MAX_NAME_CHARS)
    throw invalidField(
      MANIFEST,
      `its name must be 1 to ${MAX_NAME_CHARS} lower-case letters, digits and single hyphens between them`,
    );
  if (RESERVED.test(name)) throw invalidField(MANIFEST, 'its name must not hold "anthropic" or "claude"');
  if (typeof description !== "string" || description.trim() === "")
    throw invalidField(MANIFEST, "it must say a description");
  if (description.length > MAX_DESCRIPTION_CHARS)
    throw invalidField(MANIFEST, `its description must have at most ${MAX_DESCRIPTION_CHARS} characters`);
  if (/[<>]/.test(description) || description.includes("\0"))
    throw invalidField(MANIFEST, "its description must hold no < and >");
  return { name, description: description.trim() };
}

function fieldsOf(bytes: Uint8Array): Record<string, unknown> {
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw invalidField(MANIFEST, "is not UTF-8");
  }
  const head = HEAD.exec(text)?.[1];
  if (head === undefined || head.length > MAX_HEAD_CHARS)
    throw invalidField(MANIFEST, "must begin with name and description between lines of ---");
  try {
    const value: unknown = parse(head, { maxAliasCount: 0 });
    if (typeof value === "object" && value !== null && !Array.isArray(value))
      return value as Record<string, unknown>;
  } catch {
    // said below
  }
  throw invalidField(MANIFEST, "what is between the lines of --- is no YAML of names and values");
}

function startsProgram(bytes: Uint8Array): boolean {
  return bytes[0] === 0x23 && bytes[1] === 0x21;
}

export function skillTooLarge(): TendonError {
  return new TendonError("MESSAGE_TOO_LARGE", `a skill has at most ${MAX_SKILL_BYTES} bytes`);
}
