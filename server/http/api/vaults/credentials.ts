/** `/v1/vaults/{vault_id}/credentials`. */
import type { Clock } from "../../../../kit/clock.ts";
import { notFound } from "../../../../kit/errors.ts";
import { type Credential, VaultService } from "../../../../proto/gen/tendon/v1/vault_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { flagOf, limitOf, pageOf } from "../list-query.ts";
import { metadataPatch, newMetadata } from "../metadata.ts";
import { changedUse, newCredential, secretOf, typeOf } from "./credential-input.ts";
import { credentialJson, validationJson } from "./credential-json.ts";

const MOST = 100;

const { method } = VaultService;

export function credentialRoutes(clock: Clock): ApiRoute[] {
  const all = "/v1/vaults/{vault_id}/credentials";
  const path = `${all}/{credential_id}`;
  return [
    route("POST", all, (call) => createCredential(call, clock.nowMs())),
    route("GET", all, listCredentials),
    route("GET", path, async (call) => credentialJson(await find(call))),
    route("POST", path, (call) => updateCredential(call, clock.nowMs())),
    route("DELETE", path, async (call) => {
      const { id } = await find(call);
      await call.services.call(method.deleteCredential, { credentialId: id });
      return { id, type: "vault_credential_deleted" };
    }),
    route("POST", `${path}/archive`, async (call) => {
      const { id } = await find(call);
      const { credential } = await call.services.call(method.archiveCredential, { credentialId: id });
      return credentialJson(credential!);
    }),
    route("POST", `${path}/mcp_oauth_validate`, async (call) => {
      const credential = await find(call);
      const request = { credentialId: credential.id };
      const result = await call.services.call(method.validateCredential, request);
      return validationJson(credential, result, clock.nowMs());
    }),
  ];
}

async function createCredential({ services, params, body: { fields }, requestId }: ApiCall, nowMs: number) {
  fields.only("auth", "display_name", "metadata");
  const { use, secret } = newCredential(fields.requiredObject("auth"), nowMs);
  const { credential } = await services.call(method.createCredential, {
    requestId,
    vaultId: params.vault_id!,
    displayName: fields.text("display_name") ?? "",
    metadata: newMetadata(fields),
    use,
    secret: { form: { case: "plain", value: secret } },
  });
  return credentialJson(credential!);
}

async function listCredentials({ services, params, query }: ApiCall) {
  const { credentials, nextPageToken } = await services.call(method.listCredentials, {
    vaultId: params.vault_id!,
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
    includeArchived: flagOf(query, "include_archived"),
  });
  return { data: credentials.map(credentialJson), next_page: nextPageToken || null };
}

/** What of the secret is not said stays sealed as it is. */
async function updateCredential(call: ApiCall, nowMs: number) {
  const { services, body } = call;
  const { fields } = body;
  fields.only("auth", "display_name", "metadata");
  const before = await find(call);
  const auth = fields.object("auth");
  const type = auth === undefined ? undefined : typeOf(before.use!, auth);
  const use = type === undefined ? undefined : changedUse(before.use!, type, auth!);
  const secret = type === undefined ? undefined : secretOf(type, auth!, nowMs);
  const isSaid = secret !== undefined && Object.values(secret).some((part) => part !== "");
  const { credential } = await services.call(method.updateCredential, {
    credentialId: before.id,
    metadata: metadataPatch(fields),
    ...(fields.has("display_name") && { displayName: fields.text("display_name") ?? "" }),
    ...(use && { use }),
    ...(isSaid && { secret: { form: { case: "plain", value: secret } }, keepRestOfSecret: true }),
  });
  return credentialJson(credential!);
}

/** One of another vault is not there. */
async function find({ services, params }: ApiCall): Promise<Credential> {
  const credentialId = params.credential_id!;
  const { credential } = await services.call(method.getCredential, { credentialId });
  if (credential!.vaultId !== params.vault_id) throw notFound("credential", credentialId);
  return credential!;
}
