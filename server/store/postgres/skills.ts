import { createHash } from "node:crypto";
import { create, fromJson, type JsonValue, toJson } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { invalidField, notFound } from "../../../kit/errors.ts";
import {
  type Skill,
  type SkillFile,
  SkillFileSchema,
  SkillSchema,
  type SkillVersion,
  SkillVersionSchema,
} from "../../../proto/gen/tendon/v1/skill_pb.js";
import type { NewSkillVersion, SkillStore } from "../skills.ts";
import { insertAudit } from "./audit.ts";
import { releaseBlobs, releaseBlobsOf, writeBlob } from "./blobs.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

interface SkillRow {
  skill_id: string;
  workspace_id: string;
  display_name: string;
  latest_version_id: string;
  created_at: Date;
  updated_at: Date;
}

interface VersionRow {
  skill_version_id: string;
  skill_id: string;
  name: string;
  description: string;
  files: string;
  created_at: Date;
}

const COLUMNS = "skill_id, workspace_id, display_name, latest_version_id, created_at, updated_at";
const VERSION_COLUMNS = "skill_version_id, skill_id, name, description, files, created_at";

export function createSkillStore(pool: Pool): SkillStore {
  return {
    addVersion: (version) => addVersion(pool, version),
    async find(skillId) {
      const row = await findRow(pool, skillId);
      return row && toSkill(row);
    },
    list({ workspaceId, page }) {
      const values = workspaceId === undefined ? [] : [workspaceId];
      const where = workspaceId === undefined ? [] : ["workspace_id = $1"];
      const query = { columns: COLUMNS, from: "skills", where, values, page };
      return listPage<SkillRow, Skill>(pool, { ...query, at: "created_at", id: "skill_id" }, toSkill);
    },
    delete: (skillId, workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const skill = await findRow(transaction, skillId, workspaceId, "for update");
        if (skill === undefined) return false;
        const { rows } = await transaction.query<{ skill_version_id: string }>(
          "delete from skill_versions where skill_id = $1 returning skill_version_id",
          [skillId],
        );
        await transaction.query("delete from skills where skill_id = $1", [skillId]);
        const owners = rows.map((row) => row.skill_version_id);
        await releaseBlobsOf(transaction, { workspaceId: skill.workspace_id, owners });
        const detail = { display_name: skill.display_name, versions: rows.length };
        await insertAudit(transaction, { ...audit, workspaceId: skill.workspace_id, detail });
        return true;
      }),
    async findVersion(skillId, versionId) {
      const { rows } = await pool.query<VersionRow>(
        `select ${VERSION_COLUMNS} from skill_versions where skill_id = $1 and skill_version_id = $2`,
        [skillId, versionId],
      );
      return rows[0] && toVersion(rows[0]);
    },
    async findVersions(versionIds, workspaceId) {
      const { rows } = await pool.query<VersionRow>(
        `select v.* from skill_versions v join skills s using (skill_id)
           where v.skill_version_id = any($1) and s.workspace_id = $2`,
        [versionIds, workspaceId],
      );
      return rows.map((row) => toVersion(row));
    },
    listVersions({ skillId, page }) {
      const columns = VERSION_COLUMNS.replace("files", "'[]' as files");
      const query = { columns, from: "skill_versions", where: ["skill_id = $1"], values: [skillId], page };
      return listPage<VersionRow, SkillVersion>(
        pool,
        { ...query, at: "created_at", id: "skill_version_id" },
        toVersion,
      );
    },
    deleteVersion: (...request) =>
      inTransaction(pool, (transaction) => deleteVersion(transaction, ...request)),
  };
}

async function findRow(
  db: Queryable,
  skillId: string,
  workspaceId?: string,
  lock = "",
): Promise<SkillRow | undefined> {
  const { rows } = await db.query<SkillRow>(
    `select ${COLUMNS} from skills where skill_id = $1 and ($2::text is null or workspace_id = $2) ${lock}`,
    [skillId, workspaceId ?? null],
  );
  return rows[0];
}

/** The bytes first, each file by itself; what nobody came to name is given up again. */
async function addVersion(
  pool: Pool,
  version: NewSkillVersion,
): Promise<{ skill: Skill; skillVersion: SkillVersion }> {
  const { workspaceId, versionId, files } = version;
  try {
    const kept: SkillFile[] = [];
    for (const { path, bytes, executable } of files) {
      const sha256 = createHash("sha256").update(bytes).digest("hex");
      await writeBlob(pool, {
        workspaceId,
        owner: versionId,
        bytes: [bytes],
        maxBytes: bytes.byteLength,
        sha256,
      });
      const sizeBytes = BigInt(bytes.byteLength);
      kept.push(create(SkillFileSchema, { path, sha256, sizeBytes, executable }));
    }
    return await inTransaction(pool, async (transaction) => {
      const earlier = await claimRequestId(transaction, claimOf(version, kept));
      if (earlier === undefined) return insertVersion(transaction, version, kept);
      await releaseBlobs(transaction, { workspaceId, owner: versionId });
      return madeBefore(transaction, earlier);
    });
  } catch (error) {
    const release = { workspaceId, owner: versionId };
    await inTransaction(pool, (transaction) => releaseBlobs(transaction, release)).catch(() => {});
    throw error;
  }
}

/** A new skill's id is new with each try, so it is no part of what was asked. */
function claimOf(version: NewSkillVersion, files: readonly SkillFile[]) {
  const { workspaceId, requestId, versionId, skillId, displayName } = version;
  const asked = [
    displayName === undefined ? { skillId } : { displayName },
    files.map(({ path, sha256, executable }) => [path, sha256, executable]),
  ];
  const contentHash = createHash("sha256").update(JSON.stringify(asked)).digest();
  return { workspaceId, requestId, contentHash, scope: "skill_version", subjectId: versionId };
}

async function madeBefore(transaction: Transaction, versionId: string) {
  const { rows } = await transaction.query<VersionRow>(
    `select ${VERSION_COLUMNS} from skill_versions where skill_version_id = $1`,
    [versionId],
  );
  const [version] = rows;
  const skill = version && (await findRow(transaction, version.skill_id));
  if (skill === undefined) throw notFound("skill version", versionId);
  return { skill: toSkill(skill), skillVersion: toVersion(version!) };
}

async function insertVersion(
  transaction: Transaction,
  { workspaceId, skillId, versionId, displayName, name, description }: NewSkillVersion,
  files: readonly SkillFile[],
) {
  if (displayName !== undefined) {
    await transaction.query("insert into skills (skill_id, workspace_id, display_name) values ($1, $2, $3)", [
      skillId,
      workspaceId,
      displayName,
    ]);
  }
  const skill = await findRow(transaction, skillId, workspaceId, "for update");
  if (skill === undefined) throw notFound("skill", skillId);
  const other = await transaction.query<{ name: string }>(
    "select name from skill_versions where skill_id = $1 and name <> $2 limit 1",
    [skillId, name],
  );
  if (other.rows[0])
    throw invalidField(
      "name",
      `the skill is called "${other.rows[0].name}", and its versions are called alike`,
    );
  const size = files.reduce((sum, { sizeBytes }) => sum + Number(sizeBytes), 0);
  const text = JSON.stringify(files.map((file) => toJson(SkillFileSchema, file)));
  const { rows } = await transaction.query<VersionRow>(
    `insert into skill_versions (skill_version_id, skill_id, name, description, files, size_bytes)
       values ($1, $2, $3, $4, $5, $6) returning ${VERSION_COLUMNS}`,
    [versionId, skillId, name, description, text, size],
  );
  return { skill: await setLatest(transaction, skillId), skillVersion: toVersion(rows[0]!) };
}

async function setLatest(transaction: Transaction, skillId: string): Promise<Skill> {
  const { rows } = await transaction.query<SkillRow>(
    `update skills set updated_at = clock_timestamp(), latest_version_id = coalesce((
       select skill_version_id from skill_versions where skill_id = $1
         order by created_at desc, skill_version_id desc limit 1), '')
     where skill_id = $1 returning ${COLUMNS}`,
    [skillId],
  );
  return toSkill(rows[0]!);
}

async function deleteVersion(
  transaction: Transaction,
  ...[skillId, versionId, workspaceId, audit]: Parameters<SkillStore["deleteVersion"]>
): Promise<boolean> {
  const skill = await findRow(transaction, skillId, workspaceId, "for update");
  if (skill === undefined) return false;
  const others = await transaction.query(
    "select from skill_versions where skill_id = $1 and skill_version_id <> $2 limit 1",
    [skillId, versionId],
  );
  if (others.rowCount === 0)
    throw invalidField(
      "version_id",
      "is the only one of the skill, which has one at least: delete the skill",
    );
  const gone = await transaction.query(
    "delete from skill_versions where skill_id = $1 and skill_version_id = $2",
    [skillId, versionId],
  );
  if (gone.rowCount === 0) return false;
  await setLatest(transaction, skillId);
  await releaseBlobs(transaction, { workspaceId: skill.workspace_id, owner: versionId });
  await insertAudit(transaction, { ...audit, workspaceId: skill.workspace_id });
  return true;
}

function toSkill(row: SkillRow): Skill {
  return create(SkillSchema, {
    id: row.skill_id,
    workspaceId: row.workspace_id,
    displayName: row.display_name,
    latestVersionId: row.latest_version_id,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  });
}

function toVersion(row: VersionRow): SkillVersion {
  return create(SkillVersionSchema, {
    id: row.skill_version_id,
    skillId: row.skill_id,
    name: row.name,
    description: row.description,
    createdAt: timestampFromDate(row.created_at),
    files: (JSON.parse(row.files) as JsonValue[]).map((file) => fromJson(SkillFileSchema, file)),
  });
}
