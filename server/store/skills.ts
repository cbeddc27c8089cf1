/** Skills and their versions. The bytes of their files are blobs of the version's id. */
import type { Skill, SkillVersion } from "../../proto/gen/tendon/v1/skill_pb.js";
import type { AuditInput } from "./audit.ts";
import type { Page, PageRequest } from "./page.ts";

export interface NewSkillVersion {
  readonly workspaceId: string;
  readonly skillId: string;
  readonly versionId: string;
  /** Set for a new skill. */
  readonly displayName: string | undefined;
  readonly name: string;
  readonly description: string;
  readonly files: readonly {
    readonly path: string;
    readonly bytes: Uint8Array;
    readonly executable: boolean;
  }[];
  /** Client-chosen; empty gives up safe repetition. */
  readonly requestId: string;
}

export interface SkillStore {
  /**
   * All or nothing; a repeat gets what the same request has made before. REQUEST_ID_REUSED, NOT_FOUND for the skill; INVALID_FIELD when its versions have another name; LIMIT_EXCEEDED above the
   * workspace's stored bytes.
   */
  addVersion(version: NewSkillVersion): Promise<{ skill: Skill; skillVersion: SkillVersion }>;
  /** Callers check the workspace. */
  find(skillId: string): Promise<Skill | undefined>;
  /** Newest first; without a workspace all of the installation. */
  list(query: { workspaceId: string | undefined; page: PageRequest }): Promise<Page<Skill>>;
  /** False when there is none in what the caller sees. */
  delete(skillId: string, workspaceId: string | undefined, audit: AuditInput): Promise<boolean>;
  /** With its files. */
  findVersion(skillId: string, versionId: string): Promise<SkillVersion | undefined>;
  /** With their files; those that are not there, or of another workspace, are left out. */
  findVersions(versionIds: readonly string[], workspaceId: string): Promise<SkillVersion[]>;
  /** Newest first, without files. */
  listVersions(query: { skillId: string; page: PageRequest }): Promise<Page<SkillVersion>>;
  deleteVersion(
    skillId: string,
    versionId: string,
    workspaceId: string | undefined,
    audit: AuditInput,
  ): Promise<boolean>;
}
