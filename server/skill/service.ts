/** SkillService. */
import { fromJsonString } from "@bufbuild/protobuf";
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNulIn } from "../../kit/nul.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { AgentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { Skill, SkillVersion } from "../../proto/gen/tendon/v1/skill_pb.js";
import type {
  DeleteSkillRequest,
  DeleteSkillVersionRequest,
  DownloadSkillVersionRequest,
  GetSkillRequest,
  GetSkillVersionRequest,
  ListSkillsRequest,
  ListSkillVersionsRequest,
  SkillService,
  UploadSkillRequest,
} from "../../proto/gen/tendon/v1/skill_service_pb.js";
import { actorOf, maySee, type Principal, principalOf, scopeOf, workspaceOf } from "../ports/principal.ts";
import type { Cursor } from "../store/page.ts";
import type { Store } from "../store/store.ts";
import { packSkill, unpackSkill } from "./archive.ts";
import {
  checkSkill,
  MAX_SKILL_BYTES,
  MAX_SKILL_FILES,
  skillTooLarge,
  type UploadedSkillFile,
} from "./rules.ts";

export interface SkillServiceDeps {
  readonly store: Pick<Store, "skills" | "blobs" | "sessions">;
  readonly defaultWorkspaceId: string;
}

const DEFAULT_PAGE = 20;
/** Each is held whole while it is looked at. */
const MAX_UPLOADS = 4;
const LATEST = "latest";

export class SkillServiceHandler implements ServiceImplementation<typeof SkillService> {
  private readonly deps: SkillServiceDeps;
  private uploads = 0;

  constructor(deps: SkillServiceDeps) {
    this.deps = deps;
  }

  async uploadSkill(requests: AsyncIterable<UploadSkillRequest>, context: RpcContext) {
    if (this.uploads >= MAX_UPLOADS)
      throw new TendonError("UNAVAILABLE", `this server takes in ${MAX_UPLOADS} skills; try again`);
    this.uploads += 1;
    try {
      return await this.upload(requests, principalOf(context));
    } finally {
      this.uploads -= 1;
    }
  }

  private async upload(requests: AsyncIterable<UploadSkillRequest>, principal: Principal) {
    const { skillId, requestId, displayName, files: uploaded } = await readUpload(requests);
    refuseNulIn({ skillId, requestId, displayName });
    const there = skillId === "" ? undefined : await this.find(skillId, principal);
    const [only] = uploaded;
    const isArchive = uploaded.length === 1 && only!.path.toLowerCase().endsWith(".zip");
    const { name, description, files } = checkSkill(isArchive ? await unpackSkill(only!.bytes) : uploaded);
    return this.deps.store.skills.addVersion({
      workspaceId: there?.workspaceId ?? workspaceOf(principal, this.deps.defaultWorkspaceId),
      skillId: there?.id ?? newId("skill"),
      versionId: newId("skillVersion"),
      displayName: there === undefined ? displayName || name : undefined,
      name,
      description,
      files,
      requestId,
    });
  }

  async getSkill({ skillId }: GetSkillRequest, context: RpcContext) {
    return { skill: await this.find(skillId, principalOf(context)) };
  }

  async listSkills({ pageSize, pageToken }: ListSkillsRequest, context: RpcContext) {
    const workspaceId = scopeOf(principalOf(context));
    const query: PageQuery = ["skills", workspaceId];
    const after = decodePageToken(query, pageToken, 2) as Cursor | undefined;
    const page = { size: pageSize || DEFAULT_PAGE, after };
    const { items, next } = await this.deps.store.skills.list({ workspaceId, page });
    return { skills: items, nextPageToken: encodePageToken(query, next) };
  }

  async deleteSkill({ skillId }: DeleteSkillRequest, context: RpcContext) {
    const principal = principalOf(context);
    await this.find(skillId, principal);
    const audit = { actor: actorOf(principal), action: "skill.delete", subject: skillId };
    if (!(await this.deps.store.skills.delete(skillId, scopeOf(principal), audit)))
      throw notFound("skill", skillId);
    return {};
  }

  async getSkillVersion({ skillId, versionId }: GetSkillVersionRequest, context: RpcContext) {
    const skill = await this.find(skillId, principalOf(context));
    return {
      skillVersion: await this.version(skill, versionId === LATEST ? skill.latestVersionId : versionId),
    };
  }

  async listSkillVersions(request: ListSkillVersionsRequest, context: RpcContext) {
    const { skillId, pageSize, pageToken } = request;
    await this.find(skillId, principalOf(context));
    const query: PageQuery = ["skill_versions", skillId];
    const after = decodePageToken(query, pageToken, 2) as Cursor | undefined;
    const page = { size: pageSize || DEFAULT_PAGE, after };
    const { items, next } = await this.deps.store.skills.listVersions({ skillId, page });
    return { skillVersions: items, nextPageToken: encodePageToken(query, next) };
  }

  async deleteSkillVersion({ skillId, versionId }: DeleteSkillVersionRequest, context: RpcContext) {
    const principal = principalOf(context);
    await this.version(await this.find(skillId, principal), versionId);
    const audit = {
      actor: actorOf(principal),
      action: "skill_version.delete",
      subject: versionId,
      detail: { skill_id: skillId },
    };
    const { skills } = this.deps.store;
    if (!(await skills.deleteVersion(skillId, versionId, scopeOf(principal), audit)))
      throw notFound("skill version", versionId);
    return {};
  }

  async *downloadSkillVersion({ skillId, versionId }: DownloadSkillVersionRequest, context: RpcContext) {
    const skill = await this.find(skillId, principalOf(context));
    const version = await this.version(skill, versionId);
    const { blobs } = this.deps.store;
    for await (const chunk of packSkill(version, blobs, skill.workspaceId)) yield { chunk };
  }

  private async find(skillId: string, principal: Principal): Promise<Skill> {
    const skill = skillId.includes("\0") ? undefined : await this.deps.store.skills.find(skillId);
    const isVisible = skill !== undefined && maySee(principal, skill.workspaceId);
    if (!isVisible || !(await this.isGiven(skillId, principal))) throw notFound("skill", skillId);
    return skill;
  }

  /** A worker sees the skills of the agent whose session it was given, for as long as it has that. */
  private async isGiven(skillId: string, principal: Principal): Promise<boolean> {
    if (principal.kind !== "work_item") return true;
    const session = principal.isLost ? undefined : await this.deps.store.sessions.find(principal.sessionId);
    if (session === undefined) return false;
    const { spec } = fromJsonString(AgentSchema, session.agent, { ignoreUnknownFields: true });
    return spec?.skills.some((given) => given.skillId === skillId) ?? false;
  }

  private async version({ id }: Skill, versionId: string): Promise<SkillVersion> {
    const isName = versionId !== "" && !versionId.includes("\0");
    const version = isName ? await this.deps.store.skills.findVersion(id, versionId) : undefined;
    if (version === undefined) throw notFound("skill version", versionId);
    return version;
  }
}

interface Upload {
  readonly skillId: string;
  readonly requestId: string;
  readonly displayName: string;
  readonly files: readonly UploadedSkillFile[];
}

/** Held whole: a skill is small, and what it is can only be said once all of it has come. */
async function readUpload(requests: AsyncIterable<UploadSkillRequest>): Promise<Upload> {
  const files: { path: string; executable: boolean; chunks: Uint8Array[] }[] = [];
  let start: Pick<Upload, "skillId" | "requestId"> | undefined;
  let bytes = 0;
  for await (const { kind } of requests) {
    if (start === undefined) {
      if (kind.case !== "start") throw invalidField("start", "must be the first message");
      start = kind.value;
    } else if (kind.case === "file") {
      if (files.length >= MAX_SKILL_FILES) throw invalidField("files", `at most ${MAX_SKILL_FILES} files`);
      files.push({ path: kind.value.path, executable: kind.value.executable, chunks: [] });
    } else if (kind.case === "chunk") {
      bytes += kind.value.byteLength;
      if (bytes > MAX_SKILL_BYTES) throw skillTooLarge();
      const file = files.at(-1);
      if (file === undefined) throw invalidField("chunk", "a file must begin first");
      file.chunks.push(kind.value);
    } else if (kind.case === "end") {
      const whole = files.map(({ chunks, ...file }) => ({ ...file, bytes: Buffer.concat(chunks) }));
      const { skillId, requestId } = start;
      return { skillId, requestId, displayName: kind.value.displayName, files: whole };
    } else throw invalidField("kind", "a stream has one start");
  }
  throw new TendonError("CANCELLED", "the stream broke off before the message that ends it");
}
