/** `/v1/skills`. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { invalidField } from "../../../../kit/errors.ts";
import {
  SkillService,
  type UploadSkillRequestSchema,
} from "../../../../proto/gen/tendon/v1/skill_service_pb.js";
import { type ApiAnswer, type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { limitOf, pageOf } from "../list-query.ts";
import type { FormPart } from "../multipart.ts";
import { sendBytes } from "../send-bytes.ts";
import { skillJson, skillVersionJson } from "./skill-json.ts";

const MOST = 100;
/** One more than a skill may have, so that the service says what is wrong. */
const MOST_FILES = 1_001;

const { method } = SkillService;

type Part = MessageInitShape<typeof UploadSkillRequestSchema>;

export function skillRoutes(): ApiRoute[] {
  const path = "/v1/skills/{skill_id}";
  const versions = `${path}/versions`;
  const version = `${versions}/{version_id}`;
  const one = ({ params }: ApiCall) => ({ skillId: params.skill_id! });
  const oneVersion = (call: ApiCall) => ({ ...one(call), versionId: call.params.version_id! });
  return [
    {
      ...route("POST", "/v1/skills", async (call) => skillJson((await upload(call, "")).skill!)),
      isForm: true,
    },
    route("GET", "/v1/skills", listSkills),
    route("GET", path, async (call) =>
      skillJson((await call.services.call(method.getSkill, one(call))).skill!),
    ),
    route("DELETE", path, async (call) => {
      await call.services.call(method.deleteSkill, one(call));
      return { id: call.params.skill_id, type: "skill_deleted" };
    }),
    {
      ...route("POST", versions, async (call) =>
        skillVersionJson((await upload(call, call.params.skill_id!)).skillVersion!),
      ),
      isForm: true,
    },
    route("GET", versions, listVersions),
    route("GET", version, async (call) =>
      skillVersionJson((await call.services.call(method.getSkillVersion, oneVersion(call))).skillVersion!),
    ),
    route("DELETE", version, async (call) => {
      await call.services.call(method.deleteSkillVersion, oneVersion(call));
      return { id: call.params.version_id, type: "skill_version_deleted" };
    }),
    { method: "GET", path: `${version}/content`, handle: (call) => download(call, oneVersion(call)) },
  ];
}

async function upload({ services, form: read, requestId }: ApiCall, skillId: string) {
  const form = read({ files: MOST_FILES, fields: 8 });
  try {
    return await services.upload(method.uploadSkill, partsOf(form, { skillId, requestId }));
  } finally {
    void form.return(undefined);
  }
}

async function* partsOf(
  form: AsyncGenerator<FormPart>,
  start: { readonly skillId: string; readonly requestId: string },
): AsyncGenerator<Part> {
  let displayName = "";
  yield { kind: { case: "start", value: start } };
  for await (const part of form) {
    if (part.kind === "field") {
      if (part.name !== "display_name" || start.skillId !== "")
        throw invalidField(part.name, "is not a field here");
      displayName = part.value;
      continue;
    }
    if (part.name !== "files[]" && part.name !== "files")
      throw invalidField(part.name, "is not a field here");
    yield { kind: { case: "file", value: { path: part.filename } } };
    for await (const value of part.bytes) yield { kind: { case: "chunk", value } };
  }
  yield { kind: { case: "end", value: { displayName } } };
}

/** All skills here are those that somebody uploaded. */
async function listSkills({ services, query }: ApiCall) {
  const source = query.get("source");
  if (source !== null && source !== "custom" && source !== "anthropic")
    throw invalidField("source", "must be custom or anthropic");
  if (source === "anthropic") return { data: [], next_page: null };
  const { skills, nextPageToken } = await services.call(method.listSkills, {
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
  });
  return { data: skills.map(skillJson), next_page: nextPageToken || null };
}

async function listVersions({ services, query, params }: ApiCall) {
  const { skillVersions, nextPageToken } = await services.call(method.listSkillVersions, {
    skillId: params.skill_id!,
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
  });
  return { data: skillVersions.map(skillVersionJson), next_page: nextPageToken || null };
}

function download(
  { services, exchange, signal }: ApiCall,
  wanted: { skillId: string; versionId: string },
): Promise<ApiAnswer> {
  const content = services.stream(method.downloadSkillVersion, wanted);
  const head = { "content-type": "application/zip", "content-disposition": "attachment" };
  return sendBytes(exchange, content, { head, signal });
}
