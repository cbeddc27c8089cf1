/** `tendon skill`: directories of instructions and programs that agents are given, in versions. */
import { lstat, readdir } from "node:fs/promises";
import { basename, join, resolve } from "node:path";
import type { Command } from "commander";
import { StartupError } from "../../kit/program.ts";
import {
  type Skill,
  SkillSchema,
  type SkillVersion,
  SkillVersionSchema,
} from "../../proto/gen/tendon/v1/skill_pb.js";
import {
  DeleteSkillResponseSchema,
  DeleteSkillVersionResponseSchema,
  ListSkillsResponseSchema,
  ListSkillVersionsResponseSchema,
  UploadSkillResponseSchema,
} from "../../proto/gen/tendon/v1/skill_service_pb.js";
import { CALL_WITHIN, EXIT_USAGE, onAction } from "../command.ts";
import { fileChunks } from "../local-tree.ts";
import { sendAll } from "../send-all.ts";
import { writeTo } from "../stored-bytes.ts";
import { formatFields, formatTable } from "../table.ts";
import { timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

const MAX_FILES = 1_000;
const LATEST = "latest";

interface LocalFile {
  readonly path: string;
  /** With the skill's directory. */
  readonly name: string;
  readonly executable: boolean;
}

export function addSkillCommands(program: Command): void {
  const skill = program
    .command("skill")
    .description("skills: instructions and programs that agents are given, in versions");
  skill.addHelpText(
    "after",
    `
A skill is a folder with a SKILL.md that says its name, which is the folder's, and what it is for; or that as a .zip.

Examples:
  tendon skill create ./pdf-forms
  tendon skill update skill_01… ./pdf-forms
  tendon skill download skill_01… .`,
  );
  addUploads(skill);
  addReading(skill);
  addVersions(skill);
}

function addUploads(skill: Command): void {
  const create = skill
    .command("create <folder>")
    .description("make a skill, with its first version")
    .option("--name <name>", "for people; default is that of the skill");
  onAction<{ name?: string }>(create, async ({ options, args, api, output }) => {
    const messages = uploadOf({ skillId: "", folder: String(args[0]), displayName: options.name ?? "" });
    const answer = await sendAll(api.skills.uploadSkill(), messages);
    output.message(UploadSkillResponseSchema, answer, () => skillText(answer.skill!, answer.skillVersion));
  });
  const update = skill
    .command("update <skill> <folder>")
    .description("give a skill a new version; sessions that are there keep theirs");
  onAction(update, async ({ args, api, output }) => {
    const messages = uploadOf({ skillId: String(args[0]), folder: String(args[1]), displayName: "" });
    const answer = await sendAll(api.skills.uploadSkill(), messages);
    output.message(UploadSkillResponseSchema, answer, () => skillText(answer.skill!, answer.skillVersion));
  });
}

async function* uploadOf(upload: { skillId: string; folder: string; displayName: string }) {
  const { skillId, folder, displayName } = upload;
  yield { kind: { case: "start" as const, value: { skillId } } };
  for (const { path, name, executable } of await filesOf(folder)) {
    yield { kind: { case: "file" as const, value: { path: name, executable } } };
    for await (const value of fileChunks(path)) yield { kind: { case: "chunk" as const, value } };
  }
  yield { kind: { case: "end" as const, value: { displayName } } };
}

/** A folder's, or the archive alone. What is neither file nor folder is no part of a skill. */
async function filesOf(path: string): Promise<LocalFile[]> {
  const files: LocalFile[] = [];
  const waiting = [{ path, name: basename(resolve(path)) }];
  for (const { path: at, name } of waiting) {
    const found = await lstat(at).catch(() => undefined);
    if (found?.isDirectory() === true) {
      for (const child of (await readdir(at)).sort())
        waiting.push({ path: join(at, child), name: `${name}/${child}` });
    } else if (found?.isFile() === true) {
      files.push({ path: at, name, executable: (found.mode & 0o111) !== 0 });
    } else {
      throw new StartupError(
        found === undefined ? `there is no ${at}` : `${at} is no file and no folder`,
        EXIT_USAGE,
      );
    }
    if (waiting.length > 2 * MAX_FILES || files.length > MAX_FILES)
      throw new StartupError(`${path} holds more than the ${MAX_FILES} files of a skill`, EXIT_USAGE);
  }
  return files;
}

function addReading(skill: Command): void {
  const list = addPageOptions(skill.command("list").description("list skills, newest first"));
  onAction<PageOptions>(list, async ({ options, api, output }) => {
    const page = await api.skills.listSkills(pageOf(options), CALL_WITHIN);
    output.message(ListSkillsResponseSchema, page, () => skillTable(page.skills) + nextPageNote(page));
  });
  const get = skill.command("get <skill>").description("show a skill");
  onAction(get, async ({ args, api, output }) => {
    const { skill: found } = await api.skills.getSkill({ skillId: String(args[0]) }, CALL_WITHIN);
    output.message(SkillSchema, found!, () => skillText(found!));
  });
  const erase = skill
    .command("delete <skill>")
    .description("delete a skill with its versions; hands that have it keep it")
    .option("--version-id <version>", "this version alone");
  onAction<{ versionId?: string }>(erase, async ({ options, args, api, output }) => {
    const skillId = String(args[0]);
    const { versionId } = options;
    if (versionId === undefined) {
      const answer = await api.skills.deleteSkill({ skillId }, CALL_WITHIN);
      output.message(DeleteSkillResponseSchema, answer, () => "the skill is gone");
    } else {
      const answer = await api.skills.deleteSkillVersion({ skillId, versionId }, CALL_WITHIN);
      output.message(DeleteSkillVersionResponseSchema, answer, () => "the version is gone");
    }
  });
}

function addVersions(skill: Command): void {
  const versions = addPageOptions(
    skill.command("versions <skill>").description("list a skill's versions, newest first"),
  );
  onAction<PageOptions>(versions, async ({ options, args, api, output }) => {
    const request = { ...pageOf(options), skillId: String(args[0]) };
    const page = await api.skills.listSkillVersions(request, CALL_WITHIN);
    output.message(
      ListSkillVersionsResponseSchema,
      page,
      () => versionTable(page.skillVersions) + nextPageNote(page),
    );
  });
  const show = skill.command("show <skill> [version]").description("show a version and its files");
  onAction(show, async ({ args, api, output }) => {
    const request = { skillId: String(args[0]), versionId: String(args[1] ?? LATEST) };
    const { skillVersion } = await api.skills.getSkillVersion(request, CALL_WITHIN);
    output.message(SkillVersionSchema, skillVersion!, () => versionText(skillVersion!));
  });
  const download = skill
    .command("download <skill> [to]")
    .description('write a version as a .zip into a file or folder here; "-" is standard output')
    .option("--version-id <version>", "default is the newest");
  onAction<{ versionId?: string }>(download, async ({ options, args, api, output }) => {
    const skillId = String(args[0]);
    const asked = { skillId, versionId: options.versionId ?? LATEST };
    const { skillVersion } = await api.skills.getSkillVersion(asked, CALL_WITHIN);
    const { id: versionId, name } = skillVersion!;
    const chunks = api.skills.downloadSkillVersion({ skillId, versionId });
    const to = await writeTo(String(args[1] ?? "."), `${name}.zip`, chunks);
    if (to !== "-") output.value({ skill_id: skillId, version_id: versionId, to }, () => to);
  });
}

function skillText(skill: Skill, version?: SkillVersion): string {
  return formatFields([
    ["id", skill.id],
    ["name", skill.displayName],
    ["latest", skill.latestVersionId],
    ["directory", version?.name],
    ["for", version?.description],
    ["made", timeText(skill.createdAt)],
    ["changed", timeText(skill.updatedAt)],
  ]);
}

function skillTable(skills: readonly Skill[]): string {
  return formatTable(
    ["id", "latest", "made", "name"],
    skills.map(({ id, latestVersionId, createdAt, displayName }) => [
      id,
      latestVersionId,
      timeText(createdAt),
      displayName,
    ]),
  );
}

function versionText(version: SkillVersion): string {
  const files = version.files.map(({ path, executable }) => `${path}${executable ? " (executable)" : ""}`);
  return formatFields([
    ["id", version.id],
    ["skill", version.skillId],
    ["directory", version.name],
    ["for", version.description],
    ["made", timeText(version.createdAt)],
    ["files", files.join("\n")],
  ]);
}

function versionTable(versions: readonly SkillVersion[]): string {
  return formatTable(
    ["id", "made", "for"],
    versions.map(({ id, createdAt, description }) => [id, timeText(createdAt), description]),
  );
}
